import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { has } from "./terraform.ts";

const SYSTEMD = "/lib/systemd/systemd";
const REPOSITORY = fileURLToPath(new URL("../../../..", import.meta.url));
const UNIT = "k3-pipeline.service";
/** SIGRTMIN+4, by which systemd is asked to power off, as it is by the power button that Google presses. */
const POWER_OFF = 38;
/** A user that no machine has, so that nothing of this one's belongs to it. */
const USER = "k3:x:64123:64123::/var/lib/k3:/usr/sbin/nologin\n";

/** Why systemd cannot be booted here; undefined where it can. */
export const noInit: string | undefined = (() => {
  if (process.platform !== "linux") return "not Linux";
  if (process.getuid?.() !== 0) return "namespaces need root";
  if (!existsSync(SYSTEMD)) return "systemd is not installed";
  if (!has("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--cgroup", "true"))
    return "namespaces are not allowed here";
  return undefined;
})();

/** The text of the unit within a rendered start-up script. */
export function unitOf(script: string): string {
  return /<<'END-OF-PIPELINE-UNIT'\n([\s\S]*?)END-OF-PIPELINE-UNIT\n/.exec(script)![1]!;
}

/** What the test adds to the unit: a short pause, and a journal that tells how each run ended. */
const DROP_IN = `[Service]
RestartSec=50ms
RestartSteps=0
StandardOutput=append:/mnt/lab/journal
StandardError=inherit
ExecStopPost=/bin/sh -c 'echo "ended: $SERVICE_RESULT $EXIT_STATUS"'
`;

const UNITS: Record<string, string> = {
  [`${UNIT}.d/test.conf`]: DROP_IN,
  "booted.service": `[Unit]\nAfter=${UNIT}\n${service("/bin/echo booted")}[Install]\nWantedBy=multi-user.target\n`,
  "poweroff.target": "[Unit]\nDefaultDependencies=no\nRequires=down.service\nAfter=down.service\n",
  "down.service": `[Unit]\nDefaultDependencies=no\nRequires=shutdown.target\nAfter=shutdown.target\n${service("/bin/echo down")}`,
  ...Object.fromEntries(
    ["sysinit", "basic", "multi-user", "shutdown", "network-online"].map((name) => [
      `${name}.target`,
      `[Unit]\nDefaultDependencies=no\n${name === "multi-user" ? "Requires=basic.target\nAfter=basic.target\n" : ""}`,
    ]),
  ),
};

function service(command: string): string {
  return `[Service]\nType=oneshot\nExecStart=${command}\nStandardOutput=append:/mnt/lab/journal\n`;
}

/** In a mount namespace: what a machine has, made of folders of the test; then systemd as its first process. */
const BOOT = `set -e
mount --make-rprivate /
mkdir -p "$LAB/cgroup"
mount -t cgroup2 none "$LAB/cgroup"
cgroup=$LAB/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/k3-lab-$NAME
mkdir -p "$cgroup"
echo $$ >"$cgroup/cgroup.procs"
# Bound aside first: node or the repository may be below /opt or /mnt themselves.
mkdir -p "$LAB/opt/node" "$LAB/opt/k3" "$LAB/mnt/lab" "$LAB/mnt/k3-data/k3"
# What the boot disk shows where the data disk is not mounted: a folder in which the pipeline could very well work.
chown 64123:64123 "$LAB/mnt/k3-data/k3"
mount --bind "$NODE" "$LAB/opt/node"
mount --bind "$REPOSITORY" "$LAB/opt/k3"
mount --bind "$LAB" "$LAB/mnt/lab"
[ -z "$DATA" ] || mount --bind "$LAB/data" "$LAB/mnt/k3-data"
for folder in opt mnt; do mount --rbind "$LAB/$folder" "/$folder"; done
for file in passwd group; do mount --bind "/mnt/lab/$file" "/etc/$file"; done
# Each writable by everyone, so that what keeps the unit out is the unit.
for folder in /run /tmp /var/tmp /var/lib /usr/local; do mount -t tmpfs none "$folder"; done
mkdir /usr/local/libexec
cp /mnt/lab/program /usr/local/libexec/k3-pipeline
exec unshare --pid --fork --kill-child --mount --mount-proc --cgroup --uts --ipc sh -c '
  mount -t cgroup2 none /sys/fs/cgroup
  exec env -i container=k3-lab-test PATH="$PATH" SYSTEMD_UNIT_PATH=/mnt/lab/etc/systemd/system \
    ${SYSTEMD} --system --unit=multi-user.target --log-target=console --show-status=false'
`;

/** A machine whose data disk outlives its boots, with a systemd of its own that knows one unit of ours. */
export class Init {
  readonly folder = mkdtempSync(join(tmpdir(), "k3-lab-init-"));
  readonly #journal = join(this.folder, "journal");
  #child: ChildProcess | undefined;
  #log = "";

  /** @param unit text of the unit @param program what /usr/local/libexec/k3-pipeline does, in bash */
  constructor(unit: string, program: string) {
    const write = (path: string, text: string, mode = 0o644) => {
      const file = join(this.folder, path);
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, text, { mode });
    };
    for (const [name, text] of Object.entries({ ...UNITS, [UNIT]: unit }))
      write(`etc/systemd/system/${name}`, text);
    write("program", `#!/bin/bash\n${program}\n`, 0o755);
    write("journal", "");
    chmodSync(this.folder, 0o755);
    for (const file of ["passwd", "group"]) cpSync(`/etc/${file}`, join(this.folder, file));
    writeFileSync(join(this.folder, "passwd"), USER, { flag: "a" });
    writeFileSync(join(this.folder, "group"), "k3:x:64123:\n", { flag: "a" });
    mkdirSync(join(this.folder, "data/k3"), { recursive: true });
    execFileSync("chown", ["64123:64123", join(this.folder, "data/k3")]);
    execFileSync("systemctl", ["--root", this.folder, "enable", UNIT, "booted.service"], { stdio: "pipe" });
  }

  /** Switches the machine on, with its data disk or without. */
  boot({ data = true } = {}): void {
    this.#child = spawn("unshare", ["--mount", "bash", "-c", BOOT], {
      env: {
        PATH: process.env["PATH"],
        LAB: this.folder,
        NAME: String(process.pid),
        NODE: dirname(process.execPath),
        REPOSITORY,
        DATA: data ? "yes" : "",
      },
      stdio: ["ignore", "pipe", "pipe"],
    });
    for (const stream of [this.#child.stdout!, this.#child.stderr!])
      stream.setEncoding("utf8").on("data", (text: string) => (this.#log += text));
  }

  /** What the unit printed and how it ended, over all boots. */
  get journal(): string[] {
    return readFileSync(this.#journal, "utf8").split("\n").filter(Boolean);
  }

  /** Waits for a line of the journal; throws when the machine goes down without it. */
  async until(line: RegExp, from = 0): Promise<string> {
    for (;;) {
      const found = this.journal.slice(from).find((text) => line.test(text));
      if (found !== undefined) return found;
      if (this.#child?.exitCode !== null || this.#child.signalCode !== null)
        throw new Error(`no ${line} in\n${this.journal.join("\n")}\nsystemd said\n${this.#log}`);
      await new Promise((wait) => setTimeout(wait, 20));
    }
  }

  /** Waits until the unit neither runs nor is going to be started again; what systemd calls it then. */
  async rest(): Promise<string> {
    const show = ["systemctl", "show", UNIT, "--property=ActiveState,Job"];
    await this.until(/^ended: /);
    const inside = ["--target", String(this.#first), "--mount", "--pid", "--"];
    for (;;) {
      const { ActiveState, Job } = Object.fromEntries(
        execFileSync("nsenter", [...inside, ...show], { encoding: "utf8" })
          .trim()
          .split("\n")
          .map((line) => line.split("=")),
      );
      if ((ActiveState === "inactive" || ActiveState === "failed") && !Job) return ActiveState;
      await new Promise((wait) => setTimeout(wait, 20));
    }
  }

  /** The first process of the machine, as this system knows it; undefined before it is there. */
  get #first(): number | undefined {
    const pid = this.#child!.pid!;
    const [first] = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ");
    return first ? Number(first) : undefined;
  }

  #signal(signal: number | "SIGKILL"): void {
    const first = this.#first;
    if (first) process.kill(first, signal);
  }

  /** The host fails: everything is gone at once. */
  async lose(): Promise<void> {
    const gone = new Promise<void>((resolve) => this.#child!.once("close", () => resolve()));
    this.#signal("SIGKILL");
    await gone;
    this.#child = undefined;
  }

  /** Pre-emption: units are stopped in order; then the machine is off. */
  async powerOff(): Promise<void> {
    const from = this.journal.length;
    this.#signal(POWER_OFF);
    await this.until(/^down$/, from);
    await this.lose();
  }

  async remove(): Promise<void> {
    if (this.#child && this.#child.exitCode === null) await this.lose();
    const cleanUp = `mount --make-rprivate / && mount -t cgroup2 none "$0/cgroup" || exit 0
find "$0/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/k3-lab-$1" -depth -type d -exec rmdir {} +`;
    execFileSync("unshare", ["--mount", "bash", "-c", cleanUp, this.folder, String(process.pid)], {
      stdio: "ignore",
    });
    rmSync(this.folder, { recursive: true, force: true });
  }
}
