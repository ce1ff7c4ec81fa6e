// The roofline of the kernels: `node bench/kernels.mjs [--json] [--rounds N] [--seconds S] [--threads N] [--tokens N]
// [--clock wall|cpu] [--only KERNEL] [--table NAME] [--from SAVED_JSON]`. Every rate stands beside the limit measured in the same run
// (from memory: in the same moment): reading the same memory with as many threads, or multiply-adds on registers.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { cpus } from "node:os";
import { resolve } from "node:path";
import { buildKernels } from "./build-kernels.mjs";

const args = process.argv.slice(2);
if (args.includes("--help")) {
  console.log(`node packages/engine/bench/kernels.mjs [--json] [--rounds N] [--seconds S] [--threads N] [--tokens N]
  [--clock wall|cpu] [--only KERNEL] [--table NAME] [--from SAVED_JSON]`);
  process.exit(0);
}
const json = args.includes("--json");
const measured = args.includes("--from") ? saved(args[args.indexOf("--from") + 1]) : measure();

/** What an earlier `--json` run printed. */
function saved(path) {
  const run = JSON.parse(readFileSync(path, "utf8"));
  return { ...run, points: [...run.bounds, ...run.points] };
}

function measure() {
  const bench = resolve(buildKernels(), "kernels_bench");
  const rest = args.filter((arg) => arg !== "--json");
  const result = spawnSync(bench, rest, {
    encoding: "utf8",
    maxBuffer: 1 << 26,
    stdio: ["ignore", "pipe", "inherit"],
  });
  if (result.status !== 0) {
    console.error(
      `kernels_bench failed: ${result.error?.message ?? `exit ${result.status}, signal ${result.signal}`}`,
    );
    process.exit(1);
  }
  return { cpu: cpus()[0]?.model, ...JSON.parse(result.stdout) };
}

/** The same point among the limits: reading for `place`, multiply-adds for `table`. */
function bound(kernel, point) {
  return measured.points.find(
    (p) =>
      p.kernel === kernel &&
      p.threads === point.threads &&
      (kernel === "read" ? p.place === point.place : p.table === point.table),
  );
}

const rows = measured.points
  .filter((p) => p.kernel !== "read" && p.kernel !== "fma")
  .map((p) => {
    const read = bound("read", p)?.bytes_per_second;
    const fma = bound("fma", p)?.fma_per_second;
    return {
      ...p,
      // From memory, the median of pairs measured side by side; from L2, the best over the best.
      read_share: p.read_share ?? (read ? p.bytes_per_second / read : null),
      fma_share: fma && p.fma_per_second ? p.fma_per_second / fma : null,
      over_one_thread: p.threads > 1 ? p.units_per_second / one(p).units_per_second : null,
    };
  });

function one(point) {
  return measured.points.find(
    (p) => ["kernel", "table", "place", "tokens"].every((key) => p[key] === point[key]) && p.threads === 1,
  );
}

if (json) {
  console.log(JSON.stringify({ ...measured, points: rows, bounds: bounds() }));
} else {
  print();
}

function bounds() {
  return measured.points.filter((p) => p.kernel === "read" || p.kernel === "fma");
}

function print() {
  const giga = (x) => (x / 1e9).toFixed(1);
  const share = (x) => (x === null ? "" : `${Math.round(x * 100)} %`);
  console.log(
    `${measured.cpu ?? "unknown CPU"}, best of ${measured.rounds} x ${measured.seconds} s, ${measured.clock} clock\n`,
  );
  console.log("| limit | threads | |\n|---|---:|---:|");
  for (const p of bounds()) {
    const rate =
      p.kernel === "read" ? `${giga(p.bytes_per_second)} GB/s` : `${giga(p.fma_per_second)} GFMA/s`;
    console.log(
      `| ${p.kernel === "read" ? `read from ${p.place}` : `multiply-add, ${p.table}`} | ${p.threads} | ${rate} |`,
    );
  }
  console.log(
    "\n| kernel | table | from | tokens | threads | GB/s | of reading | GFMA/s | of the peak | G elements/s | over one thread |",
  );
  console.log("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");
  for (const p of rows) {
    const fma = p.fma_per_second ? giga(p.fma_per_second) : "";
    const over = p.over_one_thread === null ? "" : p.over_one_thread.toFixed(2);
    console.log(
      `| ${p.kernel} | ${p.table} | ${p.place} | ${p.tokens} | ${p.threads} | ${giga(p.bytes_per_second)} | ${share(p.read_share)} ` +
        `| ${fma} | ${share(p.fma_share)} | ${(p.units_per_second / 1e9).toFixed(2)} | ${over} |`,
    );
  }
}
