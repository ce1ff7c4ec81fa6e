// What a lab needs of a project, a region and a zone, held against what gcloud says there is. No input or output here.
import { Refusal } from "./settings.mjs";

/** @typedef {{ what: string, need: number, limit?: number, usage?: number, verdict: "enough" | "missing" | "unknown", hint?: string }} Finding */

/**
 * The outputs of `gcloud ... --format=json`, parsed. Forms:
 * https://cloud.google.com/compute/docs/reference/rest/v1/ (projects, regions, machineTypes, diskTypes, images).
 * @typedef {{ project: unknown, region: unknown, machineTypes: unknown, diskTypes: unknown, image?: unknown }} Answers
 */

/** Capacity quota of each disk type, in GiB. */
const DISK_METRIC = {
  "pd-standard": "DISKS_TOTAL_GB",
  "pd-balanced": "SSD_TOTAL_GB",
  "pd-ssd": "SSD_TOTAL_GB",
  "hyperdisk-balanced": "HDB_TOTAL_GB",
};

/** Families with a CPU quota of their own; the others share CPUS. */
const OWN_CPU_METRIC = ["c2", "c2d", "c3", "n2", "n2d", "t2d"];
/** Families whose quota is not among the metrics of `regions describe`. */
const FAMILY_QUOTA_ELSEWHERE = ["c3d", "c4", "c4d", "n4"];

/** Decimal bytes of the checkpoint and of a packed trunk, and what journals and results may take. */
export const CHECKPOINT_BYTES = 1.56e12;
export const TRUNK_BYTES = 77e9;
const WORK_BYTES = 20e9;
export const LOCAL_SSD_GIB = 375;

/** @param {unknown} value @returns {value is Record<string, unknown>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * @param {unknown} answer @param {string} what
 * @returns {Map<string, { limit: number, usage: number }>}
 */
function quotas(answer, what) {
  if (!isObject(answer) || !Array.isArray(answer["quotas"])) {
    throw new Refusal(
      3,
      `${what}: no list "quotas"; was it written by the command that --print-commands shows?`,
    );
  }
  const found = new Map();
  for (const quota of answer["quotas"]) {
    const { metric, limit, usage = 0 } = isObject(quota) ? quota : {};
    if (typeof metric !== "string" || typeof limit !== "number" || typeof usage !== "number") {
      throw new Refusal(3, `${what}: a quota is not {metric, limit, usage}: ${JSON.stringify(quota)}`);
    }
    found.set(metric, { limit, usage });
  }
  return found;
}

/** @param {unknown} answer @param {string} what @returns {Record<string, unknown>[]} */
function list(answer, what) {
  if (!Array.isArray(answer) || !answer.every((item) => isObject(item) && typeof item["name"] === "string")) {
    throw new Refusal(
      3,
      `${what}: not a list of objects with a name; was it written by the command that --print-commands shows?`,
    );
  }
  return answer;
}

/** The last part of a URL such as .../zones/us-central1-a. @param {unknown} url */
const lastPart = (url) =>
  String(url ?? "")
    .split("/")
    .at(-1);

/**
 * @param {import("./settings.mjs").Settings} settings
 * @param {Answers} answers
 * @returns {Finding[]}
 * @throws {Refusal} exit 3 when an answer is not of the documented form or is about another place
 */
export function checkQuota(settings, answers) {
  const region = quotas(answers.region, "region.json");
  const project = quotas(answers.project, "project.json");
  const zone = String(settings["zone"]);
  const wantedRegion = zone.slice(0, zone.lastIndexOf("-"));
  const name = isObject(answers.region) ? answers.region["name"] : undefined;
  if (name !== wantedRegion)
    throw new Refusal(3, `region.json is about ${name}, the machine will be in ${wantedRegion}`);

  /** @type {Finding[]} */
  const findings = [];
  /** @param {Map<string, { limit: number, usage: number }>} from @param {string} metric @param {number} need @param {string} where */
  const capacity = (from, metric, need, where) => {
    const quota = from.get(metric);
    const what = `${metric} (${where})`;
    if (!quota) {
      findings.push({
        what,
        need,
        verdict: "unknown",
        hint: "gcloud does not list it; see IAM & Admin > Quotas in the console",
      });
      return;
    }
    const enough = quota.limit - quota.usage >= need;
    findings.push({
      what,
      need,
      ...quota,
      verdict: enough ? "enough" : "missing",
      ...(enough
        ? {}
        : { hint: `ask for ${quota.usage + need} in IAM & Admin > Quotas, or choose differently` }),
    });
  };

  const cpus = machineFindings(settings, answers, findings);
  const family = String(settings["machine_type"]).split("-")[0] ?? "";
  const spotCpus = region.get("PREEMPTIBLE_CPUS");
  if (settings["spot"] && spotCpus && spotCpus.limit > 0)
    capacity(region, "PREEMPTIBLE_CPUS", cpus, wantedRegion);
  else if (FAMILY_QUOTA_ELSEWHERE.includes(family))
    capacity(new Map(), "CPUS_PER_VM_FAMILY", cpus, `${wantedRegion}, ${family}`);
  else
    capacity(
      region,
      OWN_CPU_METRIC.includes(family) ? `${family.toUpperCase()}_CPUS` : "CPUS",
      cpus,
      wantedRegion,
    );
  capacity(project, "CPUS_ALL_REGIONS", cpus, "project");
  capacity(region, "INSTANCES", 1, wantedRegion);

  /** @type {Map<string, number>} */
  const disks = new Map();
  for (const disk of ["boot", "data"]) {
    const metric = DISK_METRIC[/** @type {keyof typeof DISK_METRIC} */ (settings[`${disk}_disk_type`])];
    if (!metric)
      throw new Refusal(
        2,
        `${disk}_disk_type ${settings[`${disk}_disk_type`]} is not one of ${Object.keys(DISK_METRIC).join(", ")}`,
      );
    disks.set(metric, (disks.get(metric) ?? 0) + Number(settings[`${disk}_disk_gb`]));
  }
  for (const [metric, need] of disks) capacity(region, metric, need, wantedRegion);
  const ssds = Number(settings["local_ssd_count"]);
  if (ssds > 0) {
    const metric = settings["spot"] ? "PREEMPTIBLE_LOCAL_SSD_GB" : "LOCAL_SSD_TOTAL_GB";
    capacity(region, metric, ssds * LOCAL_SSD_GIB, wantedRegion);
  }

  capacity(region, "IN_USE_ADDRESSES", 1, wantedRegion);
  capacity(project, "NETWORKS", 1, "project");
  capacity(project, "FIREWALLS", 1, "project");
  if (settings["outbound"] === "nat") capacity(project, "ROUTERS", 1, "project");
  return [
    ...findings,
    ...diskTypeFindings(settings, answers),
    allocationFinding(settings),
    imageFinding(settings, answers),
  ];
}

/** @param {import("./settings.mjs").Settings} settings @param {Answers} answers @param {Finding[]} findings @returns {number} vCPUs */
function machineFindings(settings, answers, findings) {
  const { machine_type: type, zone } = settings;
  const machine = list(answers.machineTypes, "machine-types.json").find(
    (item) => item["name"] === type && lastPart(item["zone"]) === zone,
  );
  const what = `${type} in ${zone}`;
  if (!machine) {
    findings.push({
      what,
      need: 1,
      limit: 0,
      usage: 0,
      verdict: "missing",
      hint: "the zone does not offer it: choose another zone or machine type",
    });
    return Number(/-(\d+)$/.exec(String(type))?.[1] ?? 1);
  }
  findings.push({ what, need: 1, limit: 1, usage: 0, verdict: "enough" });
  // int64 values are strings in Google's JSON.
  const most = Number(machine["maximumPersistentDisksSizeGb"]);
  const need = Number(settings["boot_disk_gb"]) + Number(settings["data_disk_gb"]);
  if (Number.isFinite(most) && most > 0 && most < need) {
    findings.push({
      what: `GiB of disks on ${type}`,
      need,
      limit: most,
      usage: 0,
      verdict: "missing",
      hint: "choose a larger machine type",
    });
  }
  if (typeof machine["guestCpus"] !== "number")
    throw new Refusal(3, `machine-types.json: ${type} has no number guestCpus`);
  return machine["guestCpus"];
}

/** @param {import("./settings.mjs").Settings} settings @param {Answers} answers @returns {Finding[]} */
function diskTypeFindings(settings, answers) {
  const types = list(answers.diskTypes, "disk-types.json").filter(
    (item) => lastPart(item["zone"]) === settings["zone"],
  );
  return ["boot", "data"].map((disk) => {
    const name = settings[`${disk}_disk_type`];
    const need = Number(settings[`${disk}_disk_gb`]);
    const what = `${disk} disk: ${name} of ${need} GiB in ${settings["zone"]}`;
    const type = types.find((item) => item["name"] === name);
    if (!type)
      return {
        what,
        need,
        limit: 0,
        usage: 0,
        verdict: "missing",
        hint: "the zone does not offer this disk type",
      };
    const range = /^(\d+)GB-(\d+)GB$/.exec(String(type["validDiskSize"]));
    if (!range) return { what, need, verdict: "unknown", hint: "no validDiskSize in gcloud's answer" };
    if (need >= Number(range[1]) && need <= Number(range[2])) {
      return { what, need, limit: Number(range[2]), usage: 0, verdict: "enough" };
    }
    return {
      what,
      need,
      limit: Number(range[2]),
      usage: 0,
      verdict: "missing",
      hint: `this type is ${range[1]} to ${range[2]} GiB`,
    };
  });
}

/**
 * Whether the model fits at all: Google's GB are GiB, the model's are not.
 * @param {import("./settings.mjs").Settings} settings @returns {Finding}
 */
function allocationFinding(settings) {
  const trunk = Number(settings["local_ssd_count"]) > 0 ? 0 : TRUNK_BYTES;
  const need = Math.ceil((CHECKPOINT_BYTES + trunk + WORK_BYTES) / 2 ** 30);
  // ext4 with one inode per MiB and no reserve keeps well under one per cent for itself.
  const limit = Math.floor(Number(settings["data_disk_gb"]) * 0.99);
  const enough = limit >= need;
  return {
    what: "GiB for checkpoint, trunk and work on the data disk",
    need,
    limit,
    usage: 0,
    verdict: enough ? "enough" : "missing",
    ...(enough ? {} : { hint: `raise data_disk_gb to ${Math.ceil(need / 0.99)} or more` }),
  };
}

/** @param {import("./settings.mjs").Settings} settings @param {Answers} answers @returns {Finding} */
function imageFinding(settings, answers) {
  const name = lastPart(settings["image"]);
  const what = `image ${name}`;
  if (answers.image === undefined) {
    return {
      what,
      need: 1,
      verdict: "unknown",
      hint: "image.json was not given; an empty answer of gcloud means that it is gone",
    };
  }
  if (!isObject(answers.image) || typeof answers.image["name"] !== "string")
    throw new Refusal(3, "image.json: no image");
  if (answers.image["name"] !== name)
    throw new Refusal(3, `image.json is about ${answers.image["name"]}, not ${name}`);
  const deprecated = isObject(answers.image["deprecated"]) ? answers.image["deprecated"]["state"] : undefined;
  const usable = answers.image["status"] === "READY" && deprecated !== "OBSOLETE" && deprecated !== "DELETED";
  return {
    what,
    need: 1,
    limit: usable ? 1 : 0,
    usage: 0,
    verdict: usable ? "enough" : "missing",
    ...(usable && !deprecated
      ? {}
      : {
          hint: usable
            ? "deprecated: works, but a newer build exists"
            : "set image to a newer build of Ubuntu 24.04",
        }),
  };
}
