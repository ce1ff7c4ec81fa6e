import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { withTempDir } from "@k3/testkit";
import { expect, test } from "vitest";
import { availableMemory } from "../src/index.ts";

const GB = 1e9;
const used = () => process.memoryUsage.rss();

async function withSystem<T>(files: Record<string, string>, use: (root: string) => T): Promise<T> {
  return withTempDir(async (root) => {
    for (const [path, text] of Object.entries(files)) {
      await mkdir(dirname(join(root, path)), { recursive: true });
      await writeFile(join(root, path), text);
    }
    return use(root);
  });
}

const meminfo = (bytes: number) => `MemTotal: 99999999 kB\nMemAvailable: ${bytes / 1024} kB\n`;

/** Within what this process's own use may have changed in the meantime. */
const near = (bytes: number, expected: number) => expect(Math.abs(bytes - expected)).toBeLessThan(0.05 * GB);

test("takes the system's available memory less 5 % where no group has a limit", () =>
  withSystem(
    {
      "proc/meminfo": meminfo(64 * 1024 ** 3),
      "proc/self/cgroup": "0::/\n",
      "sys/fs/cgroup/memory.max": "max\n",
    },
    (root) => {
      const { bytes, limit } = availableMemory({ root });
      expect(limit).toBe("system");
      near(bytes, 0.95 * (64 * 1024 ** 3 + used()));
    },
  ));

test("takes the limit of a version 2 group above it, page cache not counted", () =>
  withSystem(
    {
      "proc/meminfo": meminfo(64 * 1024 ** 3),
      "proc/self/cgroup": "0::/system.slice/k3\n",
      "sys/fs/cgroup/system.slice/memory.max": `${8 * GB}`,
      "sys/fs/cgroup/system.slice/memory.current": `${5 * GB}`,
      "sys/fs/cgroup/system.slice/memory.stat": `anon ${GB}\ninactive_file ${3 * GB}\nactive_file ${GB}\n`,
      "sys/fs/cgroup/system.slice/k3/memory.max": "max\n",
      "sys/fs/cgroup/system.slice/k3/memory.current": `${GB}`,
    },
    (root) => {
      const { bytes, limit } = availableMemory({ root });
      expect(limit).toBe("cgroup-v2");
      near(bytes, 0.95 * (7 * GB + used()));
    },
  ));

test("takes the limit of a version 1 group, seen from inside a container too", () =>
  withSystem(
    {
      "proc/meminfo": meminfo(64 * 1024 ** 3),
      "proc/self/cgroup": "12:cpuset:/x\n5:memory,hugetlb:/docker/abc\n0::/\n",
      "sys/fs/cgroup/memory/memory.limit_in_bytes": `${3 * GB}`,
      "sys/fs/cgroup/memory/memory.usage_in_bytes": `${GB}`,
      "sys/fs/cgroup/memory/memory.stat": `total_inactive_file ${0.5 * GB}\ntotal_active_file 0\n`,
    },
    (root) => {
      const { bytes, limit } = availableMemory({ root });
      expect(limit).toBe("cgroup-v1");
      near(bytes, 2.5 * GB + used() - 256e6);
    },
  ));

test("knows no limit in the number that version 1 shows for none", () =>
  withSystem(
    {
      "proc/meminfo": meminfo(8 * 1024 ** 3),
      "proc/self/cgroup": "5:memory:/\n",
      "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
      "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    },
    (root) => expect(availableMemory({ root }).limit).toBe("system"),
  ));

test("on this machine it is something", () => expect(availableMemory().bytes).toBeGreaterThan(1e8));
