#!/usr/bin/env node
// Control groups with a limit on memory or on the rate at which a disk is read, version 1 or 2. Needs root.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const ROOT = "/sys/fs/cgroup";

/**
 * Makes a group for one purpose. `memory` in bytes; `read` in bytes per second from the disk that holds `of`.
 * `wrap(command)` is the command line that runs inside of it.
 */
export function makeCgroup({ memory, read, of }) {
  const groups = [];
  const limit = (controller, v1File, v2File, v1Value, v2Value) => {
    const v1 = existsSync(join(ROOT, controller.v1, v1File));
    const parent = v1 ? join(ROOT, controller.v1) : ROOT;
    const path = join(parent, `k3-bench-${controller.v1}-${process.pid}`);
    mkdirSync(path);
    groups.push(path);
    if (!v1) writeFileSync(join(parent, "cgroup.subtree_control"), `+${controller.v2}`);
    writeFileSync(join(path, v1 ? v1File : v2File), v1 ? v1Value : v2Value);
  };
  try {
    if (memory !== undefined)
      limit({ v1: "memory", v2: "memory" }, "memory.limit_in_bytes", "memory.max", `${memory}`, `${memory}`);
    if (read !== undefined) {
      const disk = wholeDisk(of);
      const [v1, v2] = [`${disk} ${read}`, `${disk} rbps=${read}`];
      limit({ v1: "blkio", v2: "io" }, "blkio.throttle.read_bps_device", "io.max", v1, v2);
    }
  } catch (error) {
    for (const path of groups) rmdirSync(path);
    throw new Error(`no control group can be made (root only): ${error.message}`, { cause: error });
  }
  const enter = groups.map((path) => `echo $$ > '${path}/cgroup.procs'`).join(" && ");
  return {
    wrap: (command) => ["sh", "-c", `${enter} && exec "$@"`, "sh", ...command],
    /** Waits for the kernel to let go of the processes that were in it. */
    remove: () => {
      for (const path of groups) {
        for (let attempt = 0; attempt < 100; attempt++) {
          try {
            rmdirSync(path);
            break;
          } catch {
            Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
          }
        }
      }
    },
  };
}

/** major:minor of the whole disk below a path: limits on partitions are refused. */
function wholeDisk(path) {
  const { dev } = statSync(path, { bigint: true });
  const own = `${((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn)}:${(dev & 0xffn) | ((dev >> 12n) & 0xffffff00n)}`;
  const sys = `/sys/dev/block/${own}`;
  if (!existsSync(sys)) throw new Error(`${path} lies on no block device`);
  return existsSync(`${sys}/partition`) ? readFileSync(`${sys}/../dev`, "utf8").trim() : own;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const USAGE = `node packages/engine/bench/cgroup.mjs [--memory BYTES] [--read BYTES_PER_SECOND --of DIR] -- COMMAND...
  runs the command in a control group with these limits (root)`;
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      memory: { type: "string" },
      read: { type: "string" },
      of: { type: "string" },
      help: { type: "boolean" },
    },
  });
  if (values.help || positionals.length === 0 || (values.read === undefined) !== (values.of === undefined)) {
    console.log(USAGE);
    process.exit(values.help ? 0 : 2);
  }
  const number = (value) => (value === undefined ? undefined : Number(value));
  const group = makeCgroup({ memory: number(values.memory), read: number(values.read), of: values.of });
  const [program, ...args] = group.wrap(positionals);
  const { status, signal } = spawnSync(program, args, { stdio: "inherit" });
  group.remove();
  if (signal) console.log(`ended by ${signal}`);
  process.exitCode = status ?? 1;
}
