#!/usr/bin/env node
// How fast a checkpoint is packed, beside how fast the same disk reads: caches dropped before each run (root), the trunk made in a
// scratch directory of TRUNKS and removed.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { pack } from "../dist/index.js";

const USAGE = `node packages/pack/bench/throughput.mjs MODEL_DIR [--trunks DIR] [--codec bf16|none] [--rounds 3]
  --trunks: where the trunk is written, another disk perhaps; beside the model if not given
  (a model of 1.4 GB: node packages/engine/bench/throttled.mjs DIR --make makes DIR/mid)`;
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    trunks: { type: "string" },
    codec: { type: "string", default: "bf16" },
    rounds: { type: "string", default: "3" },
    help: { type: "boolean" },
  },
});
if (values.help || positionals.length !== 1) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
const model = resolve(positionals[0]);
const beside = values.trunks ?? join(model, "..");

function dropCaches() {
  execFileSync("sync");
  try {
    writeFileSync("/proc/sys/vm/drop_caches", "3");
  } catch (error) {
    throw new Error("only root drops caches", { cause: error });
  }
}

/** Bytes per second of reading every shard once, in order, past the page cache. */
function diskRate() {
  const started = performance.now();
  let bytes = 0;
  for (const name of readdirSync(model).filter((file) => file.endsWith(".safetensors"))) {
    const path = join(model, name);
    execFileSync("dd", [`if=${path}`, "of=/dev/null", "bs=16M", "iflag=direct", "status=none"]);
    bytes += statSync(path).size;
  }
  return bytes / ((performance.now() - started) / 1000);
}

const disk = [];
const rates = [];
for (let round = 1; round <= Number(values.rounds); round++) {
  dropCaches();
  disk.push(diskRate());
  dropCaches();
  const trunkDir = mkdtempSync(join(beside, ".k3-pack-bench-"));
  try {
    const { source_bytes, stored_bytes, seconds } = await pack({
      modelDir: model,
      trunkDir,
      codec: values.codec,
    });
    rates.push(source_bytes / seconds);
    const written = readdirSync(trunkDir).reduce((sum, name) => sum + statSync(join(trunkDir, name)).size, 0);
    const gigabytes = (bytes) => (bytes / 1e9).toFixed(2);
    console.log(
      `${gigabytes(source_bytes)} GB in ${seconds.toFixed(1)} s: ${gigabytes(source_bytes / seconds)} GB/s of source, ${gigabytes(stored_bytes)} GB stored, ${gigabytes(written)} GB written; the disk reads ${gigabytes(disk.at(-1))} GB/s`,
    );
  } finally {
    rmSync(trunkDir, { recursive: true });
  }
}
const best = (list) => Math.max(...list);
console.log(
  `best of ${rates.length}: ${(best(rates) / 1e9).toFixed(2)} GB/s of source, ${(best(rates) / best(disk)).toFixed(2)} of the disk`,
);
