#!/usr/bin/env node
// Measures a model as it runs: node bench/twin.mjs MODEL_DIR [--memory 8e9] [--trunk DIR] [--layers N] [--tokens 3]
// [--threads N] [--context 4096] [--pace disk|memory]. Wall clock and processor seconds, since other processes take
// from the one and hardly from the other: on a quiet machine a step takes (user + sys) / threads, or the disk's time.
import { parseArgs } from "node:util";
import { Model } from "../dist/index.js";

const option = (fallback) => ({ type: "string", default: fallback });
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    memory: option("8e9"),
    tokens: option("3"),
    context: option("4096"),
    ids: option("1,2,3,4,5"),
    ...{
      trunk: { type: "string" },
      layers: { type: "string" },
      threads: { type: "string" },
      pace: { type: "string" },
    },
  },
});
const number = (text) => (text === undefined ? undefined : Number(text));
const GB = 1e9;
const clock = performance.now();
const model = await Model.open({
  modelDir: positionals[0],
  trunkDir: values.trunk,
  memory: Number(values.memory),
  layers: number(values.layers),
  threads: number(values.threads),
  contextTokens: Number(values.context),
  tuning: { pace: values.pace },
});
const { plan } = model;
const gigabytes = (bytes) => (bytes / GB).toFixed(2).padStart(7);
console.log(
  `open ${((performance.now() - clock) / 1000).toFixed(2)} s; ${model.isa}, ${model.threads} threads, codec ${model.trunk.codec};`,
  `planned ${gigabytes(plan.plannedBytes)} GB, pinned ${gigabytes(plan.pinnedBytes)} of ${gigabytes(plan.trunkBytes)} GB,`,
  `${plan.expertsCached} experts cached, chunk ${plan.chunk}`,
);
let cpu = process.cpuUsage();
const show = (name, { seconds, read, experts, wait_seconds }) => {
  const { user, system } = process.cpuUsage(cpu);
  cpu = process.cpuUsage();
  const bytes = read.trunk_bytes + read.head_bytes + read.expert_bytes;
  console.log(
    name.padEnd(12),
    `${seconds.toFixed(2).padStart(7)} s wall, ${(user / 1e6).toFixed(2).padStart(6)} user, ${(system / 1e6).toFixed(2).padStart(6)} sys,`,
    `${gigabytes(bytes)} GB read (trunk ${gigabytes(read.trunk_bytes)}, head ${gigabytes(read.head_bytes)}, experts ${gigabytes(read.expert_bytes)}),`,
    `experts ${experts.read} of ${experts.requested}, ${gigabytes(bytes / seconds)} GB/s, waited ${wait_seconds.toFixed(2)} s`,
  );
};
const session = model.session();
for (const stats of await session.prefill(values.ids.split(",").map(Number))) show("prefill", stats);
for await (const { id, stats } of session.generate({ maxTokens: Number(values.tokens) })) {
  if (stats) show(`token ${id}`, stats);
}
console.log(
  `peak resident ${gigabytes(process.resourceUsage().maxRSS * 1024)} GB of ${gigabytes(plan.budgetBytes)} GB`,
);
await model.close();
