// `node scripts/miniature-bits.mjs DIR` makes the miniature in DIR, packs it, continues a prompt on every instruction
// set of this machine, and prints for each: its name, the trunk's id, the SHA-256 of the logits, the ids.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pack } from "@k3/pack";
import { makeMiniature } from "@k3/testkit";
import { instructionSets, Model } from "../dist/index.js";

const modelDir = join(process.argv[2], "model");
const trunkDir = join(process.argv[2], "trunk");
await makeMiniature(modelDir);
await pack({ modelDir, trunkDir });
const trunk = JSON.parse(await readFile(join(trunkDir, "trunk.json"), "utf8"));
const prompt = Array.from({ length: 150 }, (_, i) => (i * 37 + 11) % 200);

for (const isa of instructionSets()) {
  const model = await Model.open({ modelDir, trunkDir, memory: 8e9, threads: 2, contextTokens: 512, isa });
  const session = model.session();
  const logits = createHash("sha256");
  await session.prefill(prompt);
  const ids = [];
  for await (const { id } of session.generate({ maxTokens: 8 })) {
    logits.update(new Uint8Array(session.lastLogits.slice().buffer));
    ids.push(id);
  }
  await model.close();
  console.log(`${isa} ${trunk.id} ${logits.digest("hex")} ${ids.join(",")}`);
}
