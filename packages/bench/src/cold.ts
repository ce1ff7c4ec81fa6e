import { execFile } from "node:child_process";
import { readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { StageError } from "@k3/stage";
import type { ColdMode } from "./bench-result.ts";

const run = promisify(execFile);

/**
 * Empties caches before a run, so that a cold start is one. `drop` asks the kernel to forget all clean pages (root
 * only, E_USAGE otherwise); `evict` advises it to forget these directories' files: posix_fadvise(DONTNEED), which
 * coreutils' dd issues for `iflag=nocache count=0`; `none` leaves everything warm.
 */
export async function makeCold(mode: ColdMode, dirs: readonly string[]): Promise<void> {
  if (mode === "none") return;
  if (mode === "drop") {
    await run("sync");
    await writeFile("/proc/sys/vm/drop_caches", "3").catch((error: unknown) => {
      throw new StageError("E_USAGE", "caches can be dropped by root only", {
        hint: "run as root, or use --cold evict",
        cause: error,
      });
    });
    return;
  }
  for (const dir of dirs) {
    for (const name of await readdir(dir)) {
      if (/\.(safetensors|bin)$/.test(name))
        await run("dd", [`if=${join(dir, name)}`, "iflag=nocache", "count=0", "status=none"]);
    }
  }
}
