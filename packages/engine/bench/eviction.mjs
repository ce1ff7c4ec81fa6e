// What the decisions of the expert cache cost a token of the released model, for caches of 16, 140 and 878 GB:
// `node bench/eviction.mjs [NATIVE]`. NATIVE is a directory of native sources to measure instead of these, such as those
// of an earlier commit. Needs 1 GB of memory.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildEviction } from "./build-eviction.mjs";

const EXPERT_BYTES = 17_547_264;
const directory = mkdtempSync(join(tmpdir(), "k3-eviction-"));
try {
  const eviction = buildEviction(directory, process.argv[2]);
  for (const gigabytes of [16, 140, 878]) {
    const cached = Math.floor((gigabytes * 1e9) / EXPERT_BYTES);
    process.stdout.write(`${gigabytes} GB, ${eviction(92, 896, 16, cached, 8, 1, "time")}`);
  }
} finally {
  rmSync(directory, { recursive: true, force: true });
}
