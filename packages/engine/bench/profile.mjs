#!/usr/bin/env node
// Where a token's time goes: twin.mjs under `perf record -e cpu-clock`, samples added up by what the symbol belongs to.
// The prefill's samples are in it too, so many tokens are decoded.
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const USAGE = `node packages/engine/bench/profile.mjs MODEL_DIR [--layers 9] [--memory 2e9] [--tokens 20] [--symbols]
  --symbols prints the thirty hottest symbols too; needs perf (Debian: linux-perf)`;
const text = (fallback) => ({ type: "string", default: fallback });
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    layers: text("9"),
    memory: text("2e9"),
    tokens: text("20"),
    symbols: { type: "boolean" },
    help: { type: "boolean" },
  },
});
if (values.help || positionals.length !== 1) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
if (spawnSync("perf", ["--version"]).status !== 0)
  throw new Error("perf is not here: apt-get install linux-perf");

const PARTS = [
  ["bf16 product", /bf16/i],
  ["MXFP4 product", /mxfp4/i],
  [
    "filling read buffers with zeros (the kernel's part of reading a hole)",
    /iov_iter_zero|clear_user|rep_stos/,
  ],
  ["memory touched for the first time", /clear_page|page_fault|anonymous_page|get_page_from_freelist/],
  ["scheduler and waiting", /sched|idle|futex|switch|pause|yield|wait|spin/i],
];
const dir = mkdtempSync(join(tmpdir(), "k3-profile-"));
const data = join(dir, "perf.data");
try {
  const twin = fileURLToPath(new URL("twin.mjs", import.meta.url));
  const options = ["--layers", values.layers, "--memory", values.memory, "--tokens", values.tokens];
  execFileSync(
    "perf",
    ["record", "-q", "-e", "cpu-clock", "-o", data, process.execPath, twin, positionals[0], ...options],
    { stdio: ["ignore", "inherit", "inherit"] },
  );
  const report = execFileSync("perf", ["report", "-i", data, "--stdio", "--sort", "symbol", "-g", "none"], {
    encoding: "utf8",
    maxBuffer: 1 << 26,
    stdio: ["ignore", "pipe", "ignore"],
  });
  const symbols = [...report.matchAll(/^\s*([0-9.]+)%\s+(\[.\] .*)$/gm)].map(([, share, symbol]) => ({
    share: Number(share),
    // perf adds empty columns after it.
    symbol: symbol.replace(/[\s-]+$/, ""),
  }));
  const sums = new Map(PARTS.map(([name]) => [name, 0]));
  let rest = 0;
  for (const { share, symbol } of symbols) {
    const part = PARTS.find(([, pattern]) => pattern.test(symbol));
    if (part) sums.set(part[0], sums.get(part[0]) + share);
    else rest += share;
  }
  for (const [name, share] of [...sums, ["everything else", rest]])
    console.log(`${share.toFixed(1).padStart(5)} %  ${name}`);
  if (values.symbols)
    for (const { share, symbol } of symbols.slice(0, 30))
      console.log(`${share.toFixed(2).padStart(7)} %  ${symbol}`);
} finally {
  rmSync(dir, { recursive: true });
}
