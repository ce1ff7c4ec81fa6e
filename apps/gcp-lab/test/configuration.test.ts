import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parse } from "@cdktf/hcl2json";
import { beforeAll, describe, expect, it } from "vitest";
import { type Hcl, LAB, PLAN, parseFolder } from "./support/terraform.ts";

/** An expression as hcl2json writes it. */
const hcl = (expression: string): string => ["$", "{", expression, "}"].join("");

let root: Hcl;
let plan: Hcl;
const one = (type: string, name = "lab"): Hcl => root.resource[type][name][0];

beforeAll(async () => {
  root = await parseFolder(LAB);
  plan = await parseFolder(PLAN);
});

describe("a person changes only the project id", () => {
  it("every other variable has a default", () => {
    const required = Object.keys(root.variable).filter((name) => !("default" in root.variable[name][0]));
    expect(required).toEqual(["project_id"]);
  });

  it("the example of a tfvars file sets nothing else", async () => {
    const example = await parse("example.tf", await readFile(join(LAB, "terraform.tfvars.example"), "utf8"));
    expect(Object.keys(example)).toEqual(["project_id"]);
  });

  it("the defaults are the blog's machine and pins", () => {
    const value = (name: string) => root.variable[name][0].default;
    expect(value("machine_type")).toBe("e2-standard-4");
    expect(value("data_disk_type")).toBe("pd-standard");
    expect(value("data_disk_gb")).toBe(2000);
    expect(value("local_ssd_count")).toBe(0);
    expect(value("model_commit")).toBe("a590ce090cb049c93a33dfe8c208ec652aa20503");
    expect(value("spot")).toBe(false);
  });

  it("the plan module has a rule or a plain type for each, and no default of its own", () => {
    for (const [name, [variable]] of Object.entries<Hcl>(plan.variable)) {
      expect(variable, name).not.toHaveProperty("default");
      expect(variable.validation !== undefined || variable.type === hcl("bool"), name).toBe(true);
    }
  });
});

describe("nobody gets in from outside", () => {
  it("the only firewall rule lets Identity-Aware Proxy reach port 22", () => {
    expect(Object.keys(root.resource.google_compute_firewall)).toEqual(["iap_ssh"]);
    const rule = one("google_compute_firewall", "iap_ssh");
    expect(rule.direction).toBe("INGRESS");
    expect(rule.source_ranges).toEqual(["35.235.240.0/20"]);
    expect(rule.allow).toEqual([{ protocol: "tcp", ports: ["22"] }]);
  });

  it("the network is the lab's own, without ready-made rules or subnets", () => {
    expect(one("google_compute_network").auto_create_subnetworks).toBe(false);
    expect(one("google_compute_firewall", "iap_ssh").network).toBe(hcl("google_compute_network.lab.id"));
    expect(one("google_compute_instance").network_interface[0].subnetwork).toBe(
      hcl("google_compute_subnetwork.lab.id"),
    );
  });

  it("the way out is either an address, on which nothing can connect, or a NAT; never neither", () => {
    const card = one("google_compute_instance").network_interface[0];
    expect(card).not.toHaveProperty("access_config");
    expect(card.dynamic.access_config[0].for_each).toBe(
      hcl('module.plan.uses_external_ip ? ["outbound only"] : []'),
    );
    expect(root.variable.outbound[0].default).toBe("external-ip");
    const nat = one("google_compute_router_nat");
    expect(nat.count).toBe(hcl("var.machine_present && module.plan.uses_nat ? 1 : 0"));
    expect(nat.subnetwork[0].name).toBe(hcl("google_compute_subnetwork.lab.id"));
  });

  it("the machine forwards nothing, boots verified, and takes its metadata from the plan alone", () => {
    const machine = one("google_compute_instance");
    expect(machine.can_ip_forward).toBe(false);
    expect(machine.metadata).toBe(hcl("module.plan.metadata"));
    expect(machine).not.toHaveProperty("metadata_startup_script");
    expect(machine.shielded_instance_config).toEqual([
      { enable_secure_boot: true, enable_vtpm: true, enable_integrity_monitoring: true },
    ]);
  });
});

describe("the data outlives the machine", () => {
  it("the data disk cannot be destroyed by Terraform, and is no part of the machine", () => {
    const disk = one("google_compute_disk", "data");
    expect(disk.lifecycle).toEqual([{ prevent_destroy: true }]);
    expect(disk).not.toHaveProperty("count");
    const machine = one("google_compute_instance");
    expect(machine.attached_disk).toHaveLength(1);
    expect(machine.attached_disk[0].source).toBe(hcl("google_compute_disk.data.id"));
    expect(machine.attached_disk[0].device_name).toBe(hcl("module.plan.names.data_disk"));
  });

  it("the data disk is of the type, size and provisioned performance that were asked for", () => {
    const disk = one("google_compute_disk", "data");
    expect([disk.type, disk.size, disk.provisioned_iops, disk.provisioned_throughput]).toEqual(
      [
        "var.data_disk_type",
        "var.data_disk_gb",
        "module.plan.data_disk.iops",
        "module.plan.data_disk.throughput",
      ].map(hcl),
    );
  });

  it("local SSDs are part of the machine, as many as were asked for", () => {
    const [scratch] = one("google_compute_instance").dynamic.scratch_disk;
    expect(scratch.for_each).toBe(hcl("range(var.local_ssd_count)"));
    expect(scratch.content).toEqual([{ interface: "NVME" }]);
  });

  it("how the machine is stopped and restarted is what the plan decides, Spot or not", () => {
    const [{ dynamic, ...scheduling }] = one("google_compute_instance").scheduling;
    const decided = [
      "provisioning_model",
      "preemptible",
      "automatic_restart",
      "on_host_maintenance",
      "instance_termination_action",
    ];
    expect(scheduling).toEqual(
      Object.fromEntries(decided.map((name) => [name, hcl(`module.plan.scheduling.${name}`)])),
    );
    expect(dynamic.max_run_duration[0].for_each).toBe(
      hcl("var.max_run_hours > 0 ? [var.max_run_hours * 3600] : []"),
    );
  });

  it("the boot disk goes with the machine", () => {
    const [boot] = one("google_compute_instance").boot_disk;
    expect(boot.auto_delete).toBe(true);
    expect(boot.initialize_params[0].image).toBe(hcl("var.image"));
  });

  it("labels are on everything that costs and can carry them", () => {
    expect(one("google_compute_disk", "data").labels).toBe(hcl("module.plan.labels"));
    expect(one("google_compute_instance").labels).toBe(hcl("module.plan.labels"));
    expect(one("google_compute_instance").boot_disk[0].initialize_params[0].labels).toBe(
      hcl("module.plan.labels"),
    );
  });
});

describe("least privilege", () => {
  it("the machine's identity may write logs and nothing else", () => {
    const machine = one("google_compute_instance");
    expect(machine.service_account).toEqual([
      {
        email: hcl("google_service_account.lab.email"),
        scopes: ["https://www.googleapis.com/auth/logging.write"],
      },
    ]);
    expect(Object.keys(root.resource.google_project_iam_member)).toEqual(["log_writer"]);
    expect(one("google_project_iam_member", "log_writer").role).toBe("roles/logging.logWriter");
  });

  it("people get rights on this machine only, and none that is broad", () => {
    const roles = Object.entries<Hcl>(root.resource)
      .filter(([type]) => type.endsWith("_iam_member"))
      .flatMap(([, members]) => Object.values<Hcl>(members).map(([member]) => member.role))
      .sort();
    expect(roles).toEqual([
      "roles/compute.osAdminLogin",
      "roles/iam.serviceAccountUser",
      "roles/iap.tunnelResourceAccessor",
      "roles/logging.logWriter",
    ]);
    const kinds = Object.keys(root.resource).filter((type) => /_iam_(binding|policy)$/.test(type));
    expect(kinds, "these would take rights away from others").toEqual([]);
  });
});

describe("money", () => {
  it("a budget sends mail, its texts say that it is no cap", async () => {
    const budget = one("google_billing_budget");
    expect(budget.count).toBe(hcl("var.budget_amount > 0 ? 1 : 0"));
    expect(budget.amount[0].specified_amount[0].units).toBe(hcl("tostring(var.budget_amount)"));
    expect(budget.dynamic.threshold_rules[0]).toMatchObject({
      for_each: hcl("module.plan.budget_thresholds"),
      content: [
        {
          threshold_percent: hcl("threshold_rules.value.percent"),
          spend_basis: hcl("threshold_rules.value.basis"),
        },
      ],
    });
    expect(budget.budget_filter[0].projects).toEqual([`projects/${hcl("data.google_project.lab.number")}`]);
    expect(root.variable.budget_amount[0].description).toContain("IT IS NO CAP");
    expect(await readFile(join(LAB, "budget.tf"), "utf8")).toContain("IT IS NO CAP");
    expect(root.variable.local_ssd_count[0].description).toContain("LOSE EVERYTHING");
  });
});

describe("what a person reads after apply", () => {
  it("is the SSH command, the log command and the next step, as the plan makes them", () => {
    const value = (name: string) => root.output[name][0].value;
    for (const name of ["ssh", "log", "bootstrap_log", "status", "stop"])
      expect(value(name)).toBe(hcl(`module.plan.commands.${name}`));
    expect(value("next_step")).toBe(
      hcl("var.machine_present ? module.plan.commands.next_step : module.plan.commands.without_machine"),
    );
    expect(value("warnings")).toBe(hcl("module.plan.warnings"));
    expect(value("pinned")).toBe(hcl("module.plan.pinned"));
  });
});

describe("pins and secrets", () => {
  it("the provider is one version", () => {
    expect(root.terraform[0].required_providers).toEqual([
      { google: { source: "hashicorp/google", version: "6.50.0" } },
    ]);
    expect(plan.terraform[0]).not.toHaveProperty("required_providers");
  });

  it("k3 is the version that is released, or that the first release will be", async () => {
    const manifest = JSON.parse(await readFile(join(LAB, "../../packages/cli/package.json"), "utf8"));
    const version = manifest.version === "0.0.0" ? "0.1.0" : manifest.version;
    expect(root.variable.k3_version[0].default).toBe(version);

    // A release writes it.
    const folder = await mkdtemp(join(tmpdir(), "k3-lab-pin-"));
    const copy = join(folder, "variables.tf");
    const text = await readFile(join(LAB, "variables.tf"), "utf8");
    await writeFile(copy, text.replace(`"${version}"`, '"0.0.9"'));
    const pin = spawnSync(process.execPath, [join(LAB, "scripts/pin-k3.mjs"), copy], { encoding: "utf8" });
    expect(pin).toMatchObject({ status: 0, stderr: "" });
    expect(await readFile(copy, "utf8")).toBe(text.replace(`"${version}"`, `"${manifest.version}"`));
    await rm(folder, { recursive: true });
  });

  it("Node.js is the version whose checksum is pinned, and the workflows test that line of it", async () => {
    const [major] = root.variable.node_version[0].default.split(".");
    const ci = await readFile(join(LAB, "../../.github/workflows/ci.yml"), "utf8");
    expect(ci).toMatch(new RegExp(`node: \\[.*\\b${major}\\b.*\\]`));
    expect(root.variable.node_sha256[0].default).toMatch(/^[0-9a-f]{64}$/);
  });

  it("no variable, output or file can hold a token", async () => {
    for (const name of [...Object.keys(root.variable), ...Object.keys(plan.variable)]) {
      expect(name).not.toMatch(/token|secret|password|credential|(^|_)key($|_)/i);
    }
    for (const folder of [LAB, PLAN, join(PLAN, "bootstrap")]) {
      for (const file of (await readdir(folder, { withFileTypes: true })).filter((entry) => entry.isFile())) {
        const text = await readFile(join(folder, file.name), "utf8");
        expect(text, file.name).not.toMatch(/hf_[A-Za-z0-9]{8,}/);
        expect(text, file.name).not.toMatch(/Environment(File)?=.*HF_TOKEN=/);
      }
    }
  });
});

describe("the README", () => {
  it("names outputs and variables that exist, and a default that is one", async () => {
    const page = await readFile(join(LAB, "README.md"), "utf8");
    const outputs = [...page.matchAll(/terraform output -raw (\w+)/g)].map((match) => match[1]!);
    expect(outputs.length).toBeGreaterThan(4);
    for (const name of outputs) expect(Object.keys(root.output)).toContain(name);

    const table = page.slice(page.indexOf("## Choices"), page.indexOf("**LOCAL SSD"));
    const rows = [...table.matchAll(/^\| (`[^|]*) \| ([^|]*) \|/gm)];
    expect(rows.length).toBeGreaterThan(8);
    for (const [, names, shown] of rows) {
      const variables = [...names!.matchAll(/`(\w+)`/g)].map((match) => match[1]!);
      for (const name of variables) expect(Object.keys(root.variable)).toContain(name);
      if (/pinned|none/.test(shown!)) continue;
      const defaults = variables.map((name) => String(root.variable[name][0].default));
      expect(shown!.replaceAll("`", "").trim()).toBe(defaults.join(", "));
    }
  });
});
