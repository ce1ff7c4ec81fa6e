#!/usr/bin/env node
// A disk at a set speed: a random checkpoint of 3 GB is made and packed with both codecs (kept in DIR for the next time), and
// tokens are decoded from it in a control group whose reads are throttled. Root, NumPy, 8 GB of disk. Prints the table
// of docs/performance.md.
import { execFileSync } from "node:child_process";
import { existsSync, renameSync } from "node:fs";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { makeCgroup } from "./cgroup.mjs";
import { decodeSeconds, medianOf, runTwin } from "./runs.mjs";

const USAGE = `node packages/engine/bench/throttled.mjs DIR [--rates 240e6,1e9,0] [--tokens 4] [--rounds 2] [--memory 420e6] [--make]
  a rate of 0 is the disk as it is; --make stops when the checkpoint and its trunks are made`;
const text = (fallback) => ({ type: "string", default: fallback });
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rates: text("240e6,1e9,0"),
    tokens: text("4"),
    rounds: text("2"),
    memory: text("420e6"),
    make: { type: "boolean" },
    help: { type: "boolean" },
  },
});
if (values.help || positionals.length !== 1) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
const root = resolve(import.meta.dirname, "../../..");
const dir = resolve(positionals[0]);
const model = join(dir, "mid");
const SHAPE =
  `hidden_size=2048 num_hidden_layers=28 vocab_size=16384 intermediate_size=8192 kda_heads=32 kda_head_dim=128
  num_attention_heads=32 q_lora_rank=512 kv_lora_rank=256 qk_nope_head_dim=64 qk_rope_head_dim=32 v_head_dim=64 num_experts=32
  num_experts_per_token=4 routed_expert_hidden_size=512 moe_intermediate_size=512`.split(/\s+/);

if (!existsSync(model)) {
  const python = process.env["K3_PYTHON"] ?? "python3";
  const made = `${model}.made`;
  const make = join(root, "tools/reference/make_checkpoint.py");
  execFileSync(
    python,
    [make, made, "--seed", "3", "--shards", "6", ...SHAPE.flatMap((set) => ["--set", set])],
    {
      stdio: ["ignore", "ignore", "inherit"],
    },
  );
  renameSync(made, model);
}
for (const codec of ["none", "bf16"]) {
  const k3 = join(root, "packages/cli/bin/k3.js");
  const { source_bytes, stored_bytes } = JSON.parse(
    execFileSync(
      process.execPath,
      [k3, "pack", model, `${model}-${codec}`, "--codec", codec, "--json", "--quiet"],
      { encoding: "utf8" },
    )
      .trim()
      .split("\n")
      .at(-1),
  );
  console.log(
    `codec ${codec}: ${(source_bytes / 1e9).toFixed(2)} GB of trunk are ${(stored_bytes / 1e9).toFixed(2)} GB, ${(stored_bytes / source_bytes).toFixed(3)}`,
  );
}

const rates = values.make ? [] : values.rates.split(",").map(Number);
if (rates.length > 0) {
  console.log("| disk | codec | owed per token | owed / rate | measured: median, and from to |");
  console.log("| --- | --- | --: | --: | --: |");
}
for (const rate of rates) {
  const runs = { none: [], bf16: [] };
  let owed = {};
  const group = rate > 0 ? makeCgroup({ read: rate, of: model }) : undefined;
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const codec of round % 2 === 0 ? ["none", "bf16"] : ["bf16", "none"]) {
      const args = ["--trunk", `${model}-${codec}`, "--memory", values.memory, "--context", "64"];
      const result = runTwin([model, ...args, "--tokens", values.tokens], group?.wrap);
      const bytes = result.steps.filter(({ phase }) => phase === "decode").map((step) => step.bytes);
      runs[codec].push(...decodeSeconds(result));
      owed = { ...owed, [codec]: medianOf(bytes) };
    }
  }
  group?.remove();
  for (const codec of ["none", "bf16"]) {
    const list = runs[codec];
    const disk = rate > 0 ? `${rate / 1e6} MB/s` : "not throttled";
    const ideal = rate > 0 ? `${(owed[codec] / rate).toFixed(2)} s` : "";
    console.log(
      `| ${disk} | ${codec} | ${(owed[codec] / 1e9).toFixed(2)} GB | ${ideal} | ${medianOf(list).toFixed(2)} s, ${Math.min(...list).toFixed(2)} to ${Math.max(...list).toFixed(2)} s |`,
    );
  }
}
