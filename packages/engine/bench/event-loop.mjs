// How long the event loop is held: node packages/engine/bench/event-loop.mjs MODEL_DIR [--memory 8e9] [--tokens 2]
//   [--threads N] [--trunk DIR] [--tokenizer DIR]
// Two figures for every phase. Wall: the longest time between two turns of a timer that is always due. On a machine whose
// cores all compute or read, it holds what the scheduler gave to other threads. CPU: the longest time that the loop's own
// thread worked between two turns, as the kernel counts it, which is up to a tick of the scheduler late.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { createSampler, loadTokenizer, Model } from "../dist/index.js";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    memory: { type: "string", default: "8e9" },
    tokens: { type: "string", default: "2" },
    threads: { type: "string" },
    trunk: { type: "string" },
    tokenizer: { type: "string" },
    help: { type: "boolean" },
  },
});
if (values.help || positionals.length !== 1) {
  console.log(
    "node packages/engine/bench/event-loop.mjs MODEL_DIR [--memory 8e9] [--tokens 2] [--threads N] [--trunk DIR] [--tokenizer DIR]",
  );
  process.exit(values.help ? 0 : 2);
}

const cpuMs = () =>
  Number(readFileSync(`/proc/self/task/${process.pid}/schedstat`, "utf8").split(" ")[0]) / 1e6;
const turns = { wall: [], cpu: [] };
let last = { wall: performance.now(), cpu: cpuMs() };
let watching = true;
const turn = () => {
  const now = { wall: performance.now(), cpu: cpuMs() };
  for (const clock of ["wall", "cpu"]) turns[clock].push(now[clock] - last[clock]);
  last = now;
  if (watching) setTimeout(turn, 0);
};
const longest = (list) =>
  list
    .sort((a, b) => b - a)
    .slice(0, 5)
    .map((ms) => ms.toFixed(1).padStart(6))
    .join("");
async function phase(name, work) {
  for (const clock of ["wall", "cpu"]) turns[clock] = [];
  const result = await work();
  await new Promise((resolve) => setTimeout(resolve, 20));
  for (const clock of ["wall", "cpu"])
    console.log(`${name.padEnd(10)} ${clock.padEnd(5)} longest, ms:${longest(turns[clock])}`);
  return result;
}

await new Promise((resolve) => setTimeout(resolve, 100));
last = { wall: performance.now(), cpu: cpuMs() };
turn();
if (values.tokenizer) await phase("tokenizer", () => loadTokenizer(values.tokenizer));
const model = await phase("open", () =>
  Model.open({
    modelDir: positionals[0],
    trunkDir: values.trunk,
    memory: Number(values.memory),
    threads: values.threads === undefined ? undefined : Number(values.threads),
    contextTokens: 256,
  }),
);
const session = model.session();
const onEvent = () => undefined;
await phase("prefill", () => session.prefill([1, 2, 3, 4, 5], { onEvent }));
for (const [name, options] of [
  ["decode", {}],
  ["sampling", { temperature: 0.8, topP: 0.95, seed: 1 }],
]) {
  await phase(name, async () => {
    const sampler = createSampler(options);
    for await (const _ of session.generate({ maxTokens: Number(values.tokens), sampler, onEvent }));
  });
}
await phase("close", () => model.close());
watching = false;
