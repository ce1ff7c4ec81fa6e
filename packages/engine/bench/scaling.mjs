#!/usr/bin/env node
// Two threads over one: the same tokens with both, in turn (1 2 2 1), each in a process of its own.
import { parseArgs } from "node:util";
import { decodeSeconds, medianOf, runTwin } from "./runs.mjs";

const USAGE =
  "node packages/engine/bench/scaling.mjs MODEL_DIR [--layers 9] [--memory 2e9] [--tokens 5] [--threads 2] [--rounds 2]";
const text = (fallback) => ({ type: "string", default: fallback });
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    layers: text("9"),
    memory: text("2e9"),
    tokens: text("5"),
    threads: text("2"),
    rounds: text("2"),
    help: { type: "boolean" },
  },
});
if (values.help || positionals.length !== 1) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
const { layers, memory, tokens } = values;
const seconds = { 1: [], [values.threads]: [] };
for (let round = 0; round < Number(values.rounds); round++) {
  for (const threads of round % 2 === 0 ? ["1", values.threads] : [values.threads, "1"]) {
    const args = ["--layers", layers, "--memory", memory, "--tokens", tokens, "--threads", threads];
    seconds[threads].push(...decodeSeconds(runTwin([positionals[0], ...args])));
  }
}
for (const [threads, list] of Object.entries(seconds)) {
  console.log(
    `${threads} ${threads === "1" ? "thread " : "threads"}: median ${medianOf(list).toFixed(2)} s a token of ${list.length}, best ${Math.min(...list).toFixed(2)}`,
  );
}
const [one, many] = [seconds["1"], seconds[values.threads]];
console.log(
  `${values.threads} over 1: ${(medianOf(one) / medianOf(many)).toFixed(2)} by medians, ${(Math.min(...one) / Math.min(...many)).toFixed(2)} by the best`,
);
