// The loopback Hub in a process of its own: synthetic shards, nothing stored. Speaks one JSON line when it is ready, and
// takes lines `{"faults": {...}}` and `{"clear": true}` on stdin; answers each with the body bytes sent so far.
import { createInterface } from "node:readline";
import { startHub, syntheticFile } from "@k3/testkit";

const { shards, bytes } = JSON.parse(process.argv[2]);
const files = Array.from({ length: shards }, (_, i) =>
  syntheticFile(`model-${String(i + 1).padStart(5, "0")}.safetensors`, bytes, { seed: i + 1 }),
);
for (const file of files) await file.hashes();
const hub = await startHub({ repositories: [{ name: "bench/model", files }] });
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
say({ endpoint: hub.endpoint });
for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.faults) hub.setFaults(order.faults);
  say({ sent: hub.bodyBytes() });
  if (order.clear) hub.clearLog();
}
await hub.close();
