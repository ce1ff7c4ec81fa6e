import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { LAYERS } from "./architecture.ts";

/**
 * Of the first seeds, the one whose nearest routing decision in any sample is widest (7e-5 between the scores of a
 * chosen and a refused expert), so that float32 makes every choice that float64 makes.
 */
export const DEFAULT_SEED = 13;

/** What fingerprintOf gives for the miniature of the default seed, on every machine. Changes only when it is meant to. */
export const FINGERPRINT = "81219853f42fb5a83783a4df4e4f6e1712c5290c772bd601893523f232092b6b";

/** A shard per layer, then the model-level tensors, the projector and the vision tower. */
export const SHARDS = LAYERS + 3;

/** Five digits for the shard, six for their number: so the release names them. */
export const shardName = (index: number): string =>
  `model-${String(index + 1).padStart(5, "0")}-of-${String(SHARDS).padStart(6, "0")}.safetensors`;

/** What the miniature should answer, for the canary and as the gate of a bench. */
export const EXPECTATIONS = "k3-expectations.json";

/** Every file of the miniature, sorted. */
export const FILES = [
  "README.md",
  "config.json",
  "generation_config.json",
  EXPECTATIONS,
  ...Array.from({ length: SHARDS }, (_, i) => shardName(i)),
  "model.safetensors.index.json",
  "tiktoken.model",
  "tokenizer_config.json",
];

/** SHA-256 over the lines `sha256  name` of the miniature's files in a directory, or undefined when one is not there. */
export async function fingerprintOf(dir: string): Promise<{ sha256: string; bytes: number } | undefined> {
  const hash = createHash("sha256");
  let bytes = 0;
  for (const name of FILES) {
    const content = await readFile(join(dir, name)).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
      throw error;
    });
    if (content === undefined) return undefined;
    hash.update(`${createHash("sha256").update(content).digest("hex")}  ${name}\n`);
    bytes += content.length;
  }
  return { sha256: hash.digest("hex"), bytes };
}
