#!/usr/bin/env node
// Measures a model as it runs, wall clock and processor seconds, since other processes take from the one and hardly from
// the other: on a quiet machine a step takes (user + sys) / threads, or the disk's time.
import { parseArgs } from "node:util";
import { Model } from "../dist/index.js";
import { medianOf } from "./runs.mjs";

const USAGE = `node packages/engine/bench/twin.mjs MODEL_DIR [--memory 8e9] [--trunk DIR] [--layers N] [--tokens 3] [--threads N]
  [--context 4096] [--ids 1,2,3,4,5] [--pace disk|memory] [--json]`;
const text = (fallback) => ({ type: "string", default: fallback });
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    memory: text("8e9"),
    tokens: text("3"),
    context: text("4096"),
    ids: text("1,2,3,4,5"),
    trunk: { type: "string" },
    layers: { type: "string" },
    threads: { type: "string" },
    pace: { type: "string" },
    json: { type: "boolean" },
    help: { type: "boolean" },
  },
});
if (values.help || positionals.length !== 1) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
const say = values.json ? () => undefined : console.log;
const number = (value) => (value === undefined ? undefined : Number(value));
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
const open = {
  seconds: (performance.now() - clock) / 1000,
  resident_bytes: process.memoryUsage.rss(),
  pinned_bytes: plan.pinnedBytes,
};
const gigabytes = (bytes) => (bytes / GB).toFixed(2).padStart(7);
say(
  `open ${open.seconds.toFixed(2)} s, ${(open.resident_bytes / 1e6).toFixed(0)} MB resident; ${model.isa}, ${model.threads} threads, codec ${model.trunk.codec};`,
  `planned ${gigabytes(plan.plannedBytes)} GB, pinned ${gigabytes(plan.pinnedBytes)} of ${gigabytes(plan.trunkBytes)} GB,`,
  `${plan.expertsCached} experts cached, chunk ${plan.chunk}`,
);
const steps = [];
let cpu = process.cpuUsage();
const show = (phase, id, { seconds, read, experts, wait_seconds }) => {
  const { user, system } = process.cpuUsage(cpu);
  cpu = process.cpuUsage();
  const bytes = read.trunk_bytes + read.head_bytes + read.expert_bytes;
  steps.push({ phase, seconds, user: user / 1e6, system: system / 1e6, bytes, read, wait_seconds });
  say(
    (id === undefined ? phase : `token ${id}`).padEnd(12),
    `${seconds.toFixed(2).padStart(7)} s wall, ${(user / 1e6).toFixed(2).padStart(6)} user, ${(system / 1e6).toFixed(2).padStart(6)} sys,`,
    `${gigabytes(bytes)} GB read (trunk ${gigabytes(read.trunk_bytes)}, head ${gigabytes(read.head_bytes)}, experts ${gigabytes(read.expert_bytes)}),`,
    `experts ${experts.read} of ${experts.requested}, ${gigabytes(bytes / seconds)} GB/s, waited ${wait_seconds.toFixed(2)} s`,
  );
};
const session = model.session();
for (const stats of await session.prefill(values.ids.split(",").map(Number)))
  show("prefill", undefined, stats);
for await (const { id, stats } of session.generate({ maxTokens: Number(values.tokens) })) {
  if (stats) show("decode", id, stats);
}
const peak_bytes = process.resourceUsage().maxRSS * 1024;
const decoded = steps.filter(({ phase }) => phase === "decode").map(({ seconds }) => seconds);
if (decoded.length > 0) {
  say(
    `decode       ${medianOf(decoded).toFixed(2).padStart(7)} s a token, median of ${decoded.length}, ${Math.min(...decoded).toFixed(2)} to ${Math.max(...decoded).toFixed(2)}`,
  );
}
say(`peak resident ${gigabytes(peak_bytes)} GB of ${gigabytes(plan.budgetBytes)} GB`);
if (values.json) console.log(JSON.stringify({ open, steps, peak_bytes, budget_bytes: plan.budgetBytes }));
await model.close();
