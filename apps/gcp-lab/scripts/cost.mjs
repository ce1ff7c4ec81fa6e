// What a lab costs: per hour, per run, and when it is switched off. No input or output here.
import { CHECKPOINT_BYTES, LOCAL_SSD_GIB, TRUNK_BYTES } from "./quota.mjs";
import { Refusal } from "./settings.mjs";

/**
 * @typedef {object} Prices
 * @property {string} as_of
 * @property {string} region
 * @property {string} currency
 * @property {number} hours_per_month
 * @property {Record<string, { standard: number, spot?: number }>} machine_hour
 * @property {Record<string, number>} disk_gib_month
 * @property {number} local_ssd_gib_month
 * @property {number} snapshot_gib_month
 * @property {{ gib: number, machine_hour: number }} nat
 * @property {number} external_ip_hour
 * @property {Record<string, Record<string, number>>} disk_read_mb_per_second
 */

const GIB = 2 ** 30;
/** The trunk as it is in the checkpoint, decimal bytes. */
const TRUNK_SOURCE_BYTES = 108.81e9;

/** What the hours of a run rest on when `k3 plan` has not been asked. */
export const ASSUMED = {
  /** Bytes per second that arrive from the Hub. */
  download: 100e6,
  /** Bytes read per token on a machine of 16 GB: trunk, head and experts less what memory holds. */
  readPerToken: 90e9,
};

/**
 * Hours of a whole pipeline on a machine whose disk is the limit: every byte of the checkpoint arrives, is read once to verify it,
 * the trunk is read and written packed, and each token reads its share again. `k3 plan` knows better; this is for a table.
 * @param {number} diskRate bytes per second
 * @param {number} tokens
 */
export function estimateHours(diskRate, tokens) {
  const fetch = CHECKPOINT_BYTES / Math.min(ASSUMED.download, diskRate);
  const verify = CHECKPOINT_BYTES / diskRate;
  const pack = (TRUNK_SOURCE_BYTES + TRUNK_BYTES) / diskRate;
  const run = (tokens * ASSUMED.readPerToken) / diskRate;
  return (fetch + verify + pack + run) / 3600;
}

/**
 * Hours of a pipeline from the result line of `k3 plan --json`.
 * @param {string} text one JSON object a line; the last one is the result
 * @param {number} tokens
 */
export function hoursOfPlan(text, tokens) {
  const last = text.trim().split("\n").at(-1) ?? "";
  /** @type {any} */
  let plan;
  try {
    plan = JSON.parse(last);
  } catch {
    throw new Refusal(3, "the last line of the plan is not JSON; write it with: k3 plan --json");
  }
  const seconds = ["fetch", "verify", "pack"].map((stage) => plan?.stages?.[stage]?.seconds);
  seconds.push(plan?.first_token_seconds, plan?.token_seconds);
  if (!seconds.every((value) => typeof value === "number" && value >= 0)) {
    throw new Refusal(
      3,
      "the plan has no stages.*.seconds, first_token_seconds and token_seconds; write it with: k3 plan --json",
    );
  }
  const [fetch, verify, pack, first, each] = seconds;
  return (fetch + verify + pack + first + (tokens - 1) * each) / 3600;
}

/**
 * @param {unknown} value @returns {Prices}
 * @throws {Refusal} exit 3 with the name of the first price that is missing
 */
export function checkPrices(value) {
  const prices = /** @type {any} */ (value);
  for (const key of ["as_of", "region", "currency"]) {
    if (typeof prices?.[key] !== "string") throw new Refusal(3, `the price file has no text ${key}`);
  }
  const numbers = {
    hours_per_month: prices.hours_per_month,
    local_ssd_gib_month: prices.local_ssd_gib_month,
    snapshot_gib_month: prices.snapshot_gib_month,
    "nat.gib": prices.nat?.gib,
    "nat.machine_hour": prices.nat?.machine_hour,
    external_ip_hour: prices.external_ip_hour,
  };
  for (const [key, number] of Object.entries(numbers)) {
    if (!(typeof number === "number" && number >= 0))
      throw new Refusal(3, `the price file has no price ${key}`);
  }
  return prices;
}

/** @param {number | undefined} price @param {string} what @returns {number} */
function known(price, what) {
  if (typeof price !== "number")
    throw new Refusal(3, `the price file has no price for ${what}: add it, or choose differently`);
  return price;
}

/**
 * @param {import("./settings.mjs").Settings} settings
 * @param {Prices} prices
 * @param {number | undefined} [givenHours] of one run; estimated from the disk's limit when left out
 */
export function costOf(settings, prices, givenHours) {
  const machine = String(settings["machine_type"]);
  const kind = settings["spot"] ? "spot" : "standard";
  const machineHour = known(prices.machine_hour[machine]?.[kind], `${machine} (${kind})`);
  const type = String(settings["data_disk_type"]);
  const bootType = String(settings["boot_disk_type"]);
  const dataMonth = Number(settings["data_disk_gb"]) * known(prices.disk_gib_month[type], type);
  const bootMonth = Number(settings["boot_disk_gb"]) * known(prices.disk_gib_month[bootType], bootType);
  const ssdMonth = Number(settings["local_ssd_count"]) * LOCAL_SSD_GIB * prices.local_ssd_gib_month;
  const hours =
    givenHours ??
    estimateHours(
      known(prices.disk_read_mb_per_second[machine]?.[type], `the read limit of ${type} on ${machine}`) * 1e6,
      Number(settings["generate"]),
    );
  const disksHour = (dataMonth + bootMonth) / prices.hours_per_month;
  const running = machineHour + disksHour + ssdMonth / prices.hours_per_month;
  // The NAT has an address of its own, at the same price.
  const natHour = prices.nat.machine_hour + prices.external_ip_hour;
  const natBytes = (CHECKPOINT_BYTES / GIB) * prices.nat.gib;
  return {
    hours,
    perHour: { externalIp: running + prices.external_ip_hour, nat: running + natHour },
    perRun: {
      externalIp: (running + prices.external_ip_hour) * hours,
      nat: (running + natHour) * hours + natBytes,
    },
    natBytes,
    offPerMonth: dataMonth + bootMonth,
    offPerDay: ((dataMonth + bootMonth) / prices.hours_per_month) * 24,
    dataDiskPerMonth: dataMonth,
    snapshotPerMonth: ((CHECKPOINT_BYTES + TRUNK_BYTES) / GIB) * prices.snapshot_gib_month,
  };
}

/** The rows of the README's table: the default and what is changed of it. */
export const README_ROWS = [
  {},
  { spot: true },
  { data_disk_type: "pd-balanced" },
  { data_disk_type: "pd-ssd" },
];

/**
 * A Markdown table, padded so that the source reads as a table too; the first column to the left, the others to the right.
 * @param {string[][]} rows the first one is the head
 */
function table(rows) {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  /** @param {string[]} cells @param {string} fill */
  const line = (cells, fill) =>
    `| ${cells.map((cell, column) => (column === 0 ? cell.padEnd(widths[0] ?? 0, fill) : cell.padStart(widths[column] ?? 0, fill))).join(" | ")} |`;
  const [head = [], ...body] = rows;
  const rule = head.map((_, column) => (column === 0 ? "-" : "-:"));
  return [line(head, " "), line(rule, "-"), ...body.map((cells) => line(cells, " "))].join("\n");
}

/** @param {import("./settings.mjs").Settings} settings */
function rowName(settings) {
  const ssds = Number(settings["local_ssd_count"]);
  const spot = settings["spot"] ? " Spot" : "";
  const local = ssds > 0 ? `, ${ssds} local SSD` : "";
  return `${settings["machine_type"]}${spot}, ${settings["data_disk_gb"]} GiB ${settings["data_disk_type"]}${local}`;
}

/**
 * The cost sheet as Markdown.
 * @param {import("./settings.mjs").Settings[]} rows complete settings, one at least
 * @param {Prices} prices
 * @param {number | undefined} [hours] of one run; estimated when left out
 */
export function costSheet(rows, prices, hours) {
  const costs = rows.map((settings) => ({ name: rowName(settings), ...costOf(settings, prices, hours) }));
  const cells = costs.map((cost) => [
    cost.name,
    cost.perHour.externalIp.toFixed(3),
    cost.hours.toFixed(1),
    cost.perRun.externalIp.toFixed(2),
    cost.perRun.nat.toFixed(2),
    cost.offPerDay.toFixed(2),
    cost.offPerMonth.toFixed(2),
  ]);
  const [first] = costs;
  if (!first) throw new TypeError("a cost sheet needs a row");
  return [
    `Prices: ${prices.currency}, ${prices.region}, list prices of ${prices.as_of}, approximate; check them.`,
    table([
      [
        "machine and data disk",
        "per hour, running",
        "hours of a run",
        "per run, external-ip",
        "per run, nat",
        "off, per day",
        "off, per month",
      ],
      ...cells,
    ]),
    `What goes on when the machine is off: both disks (${first.offPerMonth.toFixed(2)} per month in the first row), and snapshots if you make any. A snapshot of checkpoint and trunk is about ${first.snapshotPerMonth.toFixed(2)} per month, against ${first.dataDiskPerMonth.toFixed(2)} for keeping the disk, and has minimum and retrieval charges of its own. The lab costs nothing only once the machine, the data disk and every snapshot are deleted.`,
    `Cloud NAT charges for bytes that come in: ${first.natBytes.toFixed(2)} of a run through it is the download.`,
  ].join("\n\n");
}
