// How fast files are hashed, beside `openssl dgst -sha256` on the same file in the same run, and with several jobs:
//   node packages/verify/bench/throughput.mjs [MEGABYTES=1024] [ROUNDS=5] [DIR=/tmp] [DIST]
// warm: the file is in the page cache, so it is reading and hashing that is compared, not the disk.
// cold: it was put out of the page cache before each reading (`dd iflag=nocache`, which needs no root).
// Direct reads ask the disk either way; the bytes that the process had from it are shown beside them. DIST is the dist
// folder of another build of this package, measured in turn with this one.
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { closeSync, fsyncSync, mkdtempSync, openSync, readFileSync, rmSync, writeSync } from "node:fs";
import { availableParallelism, loadavg } from "node:os";
import { join, resolve } from "node:path";
import { FileHasher } from "../dist/hash-pool.js";

if (process.argv.includes("--help")) {
  console.log("node packages/verify/bench/throughput.mjs [MEGABYTES=1024] [ROUNDS=5] [DIR=/tmp] [DIST]");
  process.exit(0);
}
const [megabytes = 1024, rounds = 5] = process.argv.slice(2, 4).map(Number);
const OPENSSL = process.env["OPENSSL"] ?? "openssl";
const dir = mkdtempSync(join(process.argv[4] ?? "/tmp", "k3-verify-bench-"));
process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
const file = join(dir, "file.bin");
const fd = openSync(file, "w");
for (let i = 0; i < megabytes; i++) writeSync(fd, randomBytes(2 ** 20));
fsyncSync(fd);
closeSync(fd);
const size = megabytes * 2 ** 20;

const hashers = Array.from({ length: Math.max(2, availableParallelism()) }, () => new FileHasher());
const task = { path: file, algorithm: "sha256", size };
const hash = (hasher, direct) => hasher.hash({ ...task, direct }, () => {});
await Promise.all(hashers.map((hasher) => hasher.hash({ ...task, path: "/dev/null", size: 0 }, () => {})));

const digests = new Set();
const ways = {
  "k3 direct": async () => digests.add((await hash(hashers[0], true)).hash),
  "k3 buffered": async () => digests.add((await hash(hashers[0], false)).hash),
  openssl: () =>
    digests.add(
      spawnSync(OPENSSL, ["dgst", "-sha256", "-r", file], { encoding: "utf8" }).stdout.slice(0, 64),
    ),
};
if (process.argv[5] !== undefined) {
  const other = await import(resolve(process.argv[5], "hash-pool.js"));
  hashers.push(new other.FileHasher());
  ways["other build"] = async () => digests.add((await hash(hashers.at(-1), true)).hash);
}
const states = {
  warm: () => spawnSync("dd", [`if=${file}`, "of=/dev/null", "bs=1M"]),
  cold: () => spawnSync("dd", [`if=${file}`, "iflag=nocache", "count=0"]),
};
const fromDisk = () => Number(/^read_bytes: (\d+)/m.exec(readFileSync("/proc/self/io", "utf8"))[1]);
const rate = (bytes, times) => (bytes / Math.min(...times) / 1e9).toFixed(2);
const median = (numbers) => [...numbers].sort((a, b) => a - b)[numbers.length >> 1];

console.log(
  `load ${loadavg()[0].toFixed(1)} on ${availableParallelism()} threads, ${megabytes} MiB, best of ${rounds}; ratios are medians of rounds`,
);
for (const [state, prepare] of Object.entries(states)) {
  const taken = Object.fromEntries(Object.keys(ways).map((way) => [way, { times: [], cpu: [], read: 0 }]));
  for (let round = 0; round < rounds; round++) {
    // There and back again, so that what comes first differs.
    const turn = Object.entries(ways);
    for (const [way, work] of round % 2 ? turn.reverse() : turn) {
      prepare();
      const before = fromDisk();
      const cpu = process.cpuUsage();
      const started = performance.now();
      await work();
      taken[way].times.push((performance.now() - started) / 1000);
      const { user, system } = process.cpuUsage(cpu);
      taken[way].cpu.push((user + system) / 1e6);
      taken[way].read = fromDisk() - before;
    }
  }
  for (const [way, { times, cpu, read }] of Object.entries(taken)) {
    const of = (other) =>
      median(times.map((seconds, round) => taken[other].times[round] / seconds)).toFixed(2);
    const here = way === "openssl" ? "" : `, ${(read / 1e6).toFixed(0)} MB from the disk`;
    const spent = way === "openssl" ? "" : `, ${Math.min(...cpu).toFixed(2)} s of processor`;
    const others = ["openssl", "other build"].filter((other) => other in taken && other !== way);
    console.log(
      `${state}, ${way.padEnd(11)}: ${rate(size, times)} GB/s${here}${spent}` +
        others.map((other) => `, ${of(other)} of ${other}`).join(""),
    );
  }
}
if (digests.size !== 1) throw new Error("the hashes differ");
for (const [direct, state] of [
  [false, "warm"],
  [true, "cold"],
]) {
  const rates = [];
  for (let jobs = 1; jobs <= Math.max(2, availableParallelism()); jobs *= 2) {
    const times = [];
    for (let round = 0; round < rounds; round++) {
      states[state]();
      const started = performance.now();
      await Promise.all(hashers.slice(0, jobs).map((hasher) => hash(hasher, direct)));
      times.push((performance.now() - started) / 1000);
    }
    rates.push(jobs / Math.min(...times));
    console.log(
      `jobs ${jobs}, ${direct ? "direct" : "warm"}: ${rate(size * jobs, times)} GB/s, ${(rates.at(-1) / rates[0]).toFixed(2)} of one`,
    );
  }
}
await Promise.all(hashers.map((hasher) => hasher.close()));
