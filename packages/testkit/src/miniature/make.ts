import { mkdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { parseConfig } from "@k3/checkpoint";
import { Meter, StageError, type StageOptions, throwIfAborted, writeFileAtomically } from "@k3/stage";
import { tiktokenModel } from "../byte-pairs.ts";
import { ReferenceModel } from "../reference/model.ts";
import { type RawTensor, RawWeights } from "../reference/weights.ts";
import { configJson, generationConfigJson, tokenizerConfigJson } from "./architecture.ts";
import { safetensorsFile } from "./encode.ts";
import { learnHead, lessonsOf } from "./learn.ts";
import { miniatureSamples, miniatureVocabulary, type Sample } from "./samples.ts";
import { HEAD, randomWeights } from "./weights.ts";

export interface MiniatureOptions extends StageOptions {
  /** Another seed is another model with the same knowledge; default 1. */
  seed?: number;
}

export interface Miniature {
  dir: string;
  /** Names of the files, sorted. */
  files: string[];
  shards: number;
  /** Bytes of all files. */
  bytes: number;
  /** What it continues greedily. */
  samples: Sample[];
  /** Smallest lead of a learned token's logit over the next best one. */
  smallestMargin: number;
  /** Smallest distance between a chosen and a refused expert in any of the samples: float32 must resolve it. */
  smallestRouterGap: number;
  seconds: number;
}

const README = `# k3 miniature

A Kimi K3 checkpoint of a few megabytes in the released layout, made from a seed by @k3/testkit. Its weights are random
except for the last projection, which was solved so that the correct forward pass continues a handful of sentences. It
is for testing software, and knows nothing else.
`;

/**
 * Writes the miniature into a directory: the same seed gives the same bytes on every machine. Files that are already
 * there with these bytes are left alone, others are replaced atomically, so an interrupted call can be repeated.
 * Throws E_INTERRUPTED when aborted, E_USAGE when the directory holds shards of something else, and E_DEFECT should
 * the model not have learned what it must.
 */
export async function makeMiniature(dir: string, options: MiniatureOptions = {}): Promise<Miniature> {
  const { signal, onEvent } = options;
  const startedAt = performance.now();
  const seed = options.seed ?? 1;
  if (!Number.isSafeInteger(seed) || seed < 0) {
    throw new StageError("E_USAGE", `the miniature's seed must be a whole number from 0, not ${seed}`);
  }
  const samples = miniatureSamples();
  const lessons = lessonsOf(samples);
  const total = lessons.reduce((sum, { ids }) => sum + ids.length, 0);
  const meter = new Meter({ stage: "miniature", phase: "making weights", unit: "tokens", total, onEvent });
  meter.emit();
  const shards = randomWeights(seed);
  const config = `${JSON.stringify(configJson(), null, 2)}\n`;
  meter.phase = "learning";
  meter.emit();
  const holder = shards.find((shard) => shard.has(HEAD))!;
  const weights = new RawWeights((name) => find(shards, name));
  const model = new ReferenceModel(parseConfig(config, "config.json"), weights);
  const onToken = (tokens: number) => meter.add(tokens);
  const { head, smallestMargin } = await learnHead(model, holder.get(HEAD)!, lessons, { signal, onToken });
  holder.set(HEAD, head);
  throwIfAborted(signal);
  meter.phase = "writing";
  meter.emit();
  const contents = fileContents(shards, config);
  await mkdir(dir, { recursive: true });
  let bytes = 0;
  for (const [name, content] of contents) {
    throwIfAborted(signal);
    await writeIfDifferent(join(dir, name), content);
    bytes += content.length;
  }
  meter.emit();
  const files = [...contents.keys()].sort();
  const { smallestRouterGap } = model;
  const seconds = (performance.now() - startedAt) / 1000;
  return { dir, files, shards: shards.length, bytes, samples, smallestMargin, smallestRouterGap, seconds };
}

function find(shards: readonly Map<string, RawTensor>[], name: string): RawTensor | undefined {
  for (const shard of shards) {
    const tensor = shard.get(name);
    if (tensor !== undefined) return tensor;
  }
  return undefined;
}

function fileContents(shards: readonly Map<string, RawTensor>[], config: string): Map<string, Buffer> {
  const files = new Map<string, Buffer>();
  const text = (name: string, content: string) => files.set(name, Buffer.from(content, "utf8"));
  const json = (name: string, content: unknown) => text(name, `${JSON.stringify(content, null, 2)}\n`);
  const weightMap: Record<string, string> = {};
  let totalSize = 0;
  shards.forEach((tensors, i) => {
    const number = (n: number, digits: number) => String(n).padStart(digits, "0");
    // Five digits for the shard, six for their number: so the release names them.
    const file = `model-${number(i + 1, 5)}-of-${number(shards.length, 6)}.safetensors`;
    files.set(file, safetensorsFile(tensors));
    for (const [name, { bytes }] of tensors) {
      weightMap[name] = file;
      totalSize += bytes.length;
    }
  });
  json("model.safetensors.index.json", { metadata: { total_size: totalSize }, weight_map: weightMap });
  text("tiktoken.model", tiktokenModel(miniatureVocabulary()));
  json("tokenizer_config.json", tokenizerConfigJson());
  json("generation_config.json", generationConfigJson());
  text("README.md", README);
  text("config.json", config);
  return files;
}

async function writeIfDifferent(path: string, content: Buffer): Promise<void> {
  const size = await stat(path).then(
    (found) => found.size,
    () => -1,
  );
  if (size === content.length && (await readFile(path)).equals(content)) return;
  await writeFileAtomically(path, content);
}
