import { mkdir, readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { parseConfig } from "@k3/checkpoint";
import { Meter, StageError, type StageOptions, throwIfAborted, writeFileAtomically } from "@k3/stage";
import { tiktokenModel } from "../byte-pairs.ts";
import { ReferenceModel } from "../reference/model.ts";
import { type RawTensor, RawWeights } from "../reference/weights.ts";
import { configJson, generationConfigJson, tokenizerConfigJson } from "./architecture.ts";
import { safetensorsFile } from "./encode.ts";
import { expectationsOf } from "./expectations.ts";
import {
  DEFAULT_SEED,
  EXPECTATIONS,
  FILES,
  FINGERPRINT,
  fingerprintOf,
  SHARDS,
  shardName,
} from "./fingerprint.ts";
import { learnHead, lessonsOf } from "./learn.ts";
import { miniatureSamples, miniatureVocabulary, type Sample } from "./samples.ts";
import { HEAD, randomWeights } from "./weights.ts";

export interface MiniatureOptions extends StageOptions {
  /** Another seed is another model with the same knowledge; default DEFAULT_SEED. */
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
  /** The directory already held it, to the byte; nothing was computed or written. */
  unchanged: boolean;
  seconds: number;
}

const README = `# k3 miniature

A Kimi K3 checkpoint of a few megabytes in the released layout, made from a seed by @k3/testkit. Its weights are random
except for the last projection, which was solved so that the correct forward pass continues a handful of sentences. It
is for testing software, and knows nothing else.
`;

/**
 * Writes the miniature into a directory: the same seed gives the same bytes on every machine. A directory that already
 * holds the default one is recognised by its hash at once. Files that are already there with the right bytes are left
 * alone, others are replaced atomically, so an interrupted call can be repeated. Throws E_INTERRUPTED when aborted,
 * E_USAGE for a seed that is none and for a directory that holds other shards, and E_DEFECT should the model not have
 * learned what it must.
 */
export async function makeMiniature(dir: string, options: MiniatureOptions = {}): Promise<Miniature> {
  const { signal, onEvent, seed = DEFAULT_SEED } = options;
  const startedAt = performance.now();
  if (!Number.isSafeInteger(seed) || seed < 0) {
    throw new StageError("E_USAGE", `the miniature's seed must be a whole number from 0, not ${seed}`);
  }
  throwIfAborted(signal);
  await refuseOtherShards(dir);
  const samples = miniatureSamples();
  const result = (bytes: number, unchanged: boolean): Miniature => {
    const seconds = (performance.now() - startedAt) / 1000;
    return { dir, files: FILES, shards: SHARDS, bytes, samples, unchanged, seconds };
  };
  if (seed === DEFAULT_SEED) {
    const found = await fingerprintOf(dir);
    if (found?.sha256 === FINGERPRINT) return result(found.bytes, true);
  }

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
  holder.set(HEAD, await learnHead(model, holder.get(HEAD)!, lessons, { signal, onToken }));
  meter.phase = "writing";
  meter.emit();
  await mkdir(dir, { recursive: true });
  let bytes = 0;
  const known = expectationsOf(parseConfig(config, "config.json"), weights, samples);
  for (const [name, content] of fileContents(shards, config, known)) {
    throwIfAborted(signal);
    await writeIfDifferent(join(dir, name), content);
    bytes += content.length;
  }
  meter.emit();
  return result(bytes, false);
}

/** A model of someone's own must not become a mixture of two. */
async function refuseOtherShards(dir: string): Promise<void> {
  const names = await readdir(dir).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  const other = names.find((name) => name.endsWith(".safetensors") && !FILES.includes(name));
  if (other !== undefined) {
    throw new StageError("E_USAGE", `${dir} holds another model (${other})`, {
      hint: "give an empty directory",
    });
  }
}

function find(shards: readonly Map<string, RawTensor>[], name: string): RawTensor | undefined {
  for (const shard of shards) {
    const tensor = shard.get(name);
    if (tensor !== undefined) return tensor;
  }
  return undefined;
}

function fileContents(
  shards: readonly Map<string, RawTensor>[],
  config: string,
  known: object,
): Map<string, Buffer> {
  const files = new Map<string, Buffer>();
  const text = (name: string, content: string) => files.set(name, Buffer.from(content, "utf8"));
  const json = (name: string, content: unknown) => text(name, `${JSON.stringify(content, null, 2)}\n`);
  const weightMap: Record<string, string> = {};
  let totalSize = 0;
  shards.forEach((tensors, i) => {
    const file = shardName(i);
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
  json(EXPECTATIONS, known);
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
