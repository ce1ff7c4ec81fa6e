// How fast files are hashed, beside `openssl dgst -sha256` on the same file in the same run, and with several jobs:
//   node packages/verify/bench/throughput.mjs [MEGABYTES=1024] [ROUNDS=5] [DIR=/tmp]
// Both read from the page cache, so it is reading and hashing that is compared, not the disk.
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from "node:fs";
import { availableParallelism, loadavg } from "node:os";
import { join } from "node:path";
import { FileHasher } from "../dist/hash-pool.js";

if (process.argv.includes("--help")) {
  console.log("node packages/verify/bench/throughput.mjs [MEGABYTES=1024] [ROUNDS=5] [DIR=/tmp]");
  process.exit(0);
}
const [megabytes = 1024, rounds = 5] = process.argv.slice(2, 4).map(Number);
const OPENSSL = process.env["OPENSSL"] ?? "openssl";
const dir = mkdtempSync(join(process.argv[4] ?? "/tmp", "k3-verify-bench-"));
const file = join(dir, "file.bin");
const fd = openSync(file, "w");
for (let i = 0; i < megabytes; i++) writeSync(fd, randomBytes(2 ** 20));
closeSync(fd);
const size = megabytes * 2 ** 20;

const seconds = async (work) => {
  const started = performance.now();
  await work();
  return (performance.now() - started) / 1000;
};
const show = (times, bytes) => `${(bytes / Math.min(...times) / 1e9).toFixed(2)} GB/s`;

const hashers = Array.from({ length: Math.max(2, availableParallelism()) }, () => new FileHasher());
const task = { path: file, algorithm: "sha256", size };
await Promise.all(hashers.map((hasher) => hasher.hash({ ...task, path: "/dev/null", size: 0 }, () => {})));
let digest = "";
const ours = [];
const theirs = [];
const ratios = [];
for (let round = 0; round < rounds; round++) {
  const a = await seconds(async () => {
    digest = (await hashers[0].hash(task, () => {})).hash;
  });
  let out = "";
  const b = await seconds(() => {
    out = spawnSync(OPENSSL, ["dgst", "-sha256", "-r", file], { encoding: "utf8" }).stdout;
  });
  if (!out.startsWith(digest)) throw new Error("the two hashes differ");
  ours.push(a);
  theirs.push(b);
  ratios.push(b / a);
}
ratios.sort((a, b) => a - b);
console.log(
  `load ${loadavg()[0].toFixed(1)} on ${availableParallelism()} threads, ${megabytes} MiB, best of ${rounds}`,
);
console.log(`k3 verify (SHA-256 and CRC-32): ${show(ours, size)}`);
console.log(`openssl dgst -sha256:           ${show(theirs, size)}`);
console.log(
  `ratio of the bests ${(Math.min(...theirs) / Math.min(...ours)).toFixed(2)}, of single rounds ${ratios.map((r) => r.toFixed(2)).join(" ")}`,
);
const rates = [];
for (let jobs = 1; jobs <= hashers.length; jobs *= 2) {
  const times = [];
  for (let round = 0; round < rounds; round++) {
    times.push(
      await seconds(() => Promise.all(hashers.slice(0, jobs).map((hasher) => hasher.hash(task, () => {})))),
    );
  }
  rates.push(jobs / Math.min(...times));
  console.log(`jobs ${jobs}: ${show(times, size * jobs)}, ${(rates.at(-1) / rates[0]).toFixed(2)} of one`);
}
await Promise.all(hashers.map((hasher) => hasher.close()));
rmSync(dir, { recursive: true });
