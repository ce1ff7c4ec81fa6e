#!/usr/bin/env node
// The expert trace that kimi-k3-in-c publishes (tests/fixtures/expert_trace.bin), in our form on standard output. It holds pairs of
// int32, layer and expert, of passes over ever longer prefixes of one text, each pass layer by layer and in a layer token
// by token. The last pass has every token; taken token by token it is what decoding asks for.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

const USAGE = "node packages/bench/bench/public-trace.mjs expert_trace.bin [--top-k 16] > expert-trace.json";
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { "top-k": { type: "string", default: "16" }, help: { type: "boolean" } },
});
if (values.help || positionals.length !== 1) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
const bytes = readFileSync(positionals[0]);
const topK = Number(values["top-k"]);
if (bytes.length === 0 || bytes.length % 8 !== 0)
  throw new Error(`${positionals[0]} holds no pairs of int32`);

/** The requests of each layer's latest run: the last pass replaces those before it. */
const layers = new Map();
let current;
for (let at = 0; at < bytes.length; at += 8) {
  const layer = bytes.readInt32LE(at);
  if (layer !== current) layers.set(layer, []);
  current = layer;
  layers.get(layer).push(bytes.readInt32LE(at + 4));
}
const lengths = new Set([...layers.values()].map((requests) => requests.length));
if (lengths.size !== 1 || [...lengths][0] % topK !== 0)
  throw new Error(`the last pass does not ask every layer for ${topK} experts a token`);
const byToken = (requests) =>
  Array.from({ length: requests.length / topK }, (_, token) =>
    requests.slice(token * topK, (token + 1) * topK),
  );
const about = "The last pass of the expert trace that kimi-k3-in-c publishes, token by token.";
const trace = Object.fromEntries([...layers].map(([layer, requests]) => [layer, byToken(requests)]));
console.log(JSON.stringify({ about, layers: trace }));
