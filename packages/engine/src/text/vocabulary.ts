import { createHash } from "node:crypto";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { readRegularFile, runInSlices, StageError, toStageError } from "@k3/stage";
import type { RankTable } from "./rank-table.ts";
import { SPECIAL_TOKENS } from "./special-tokens.ts";
import { tiktokenModelSteps } from "./tiktoken-model.ts";

/** The published vocabulary (k3-model 5.1). */
export const RELEASED_VOCABULARY = {
  baseTokens: 163_584,
  bytes: 2_795_286,
  sha256: "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103",
} as const;

/** A prompt whose ids under the released vocabulary were published (k3-model 5.3). */
const KNOWN_PROMPT = { text: "The capital of France is", ids: [1008, 10484, 318, 15383, 387] } as const;

/** Far above the release (2.8 MB and some KB); a file beyond this is not read at all. */
const MAX_MODEL_BYTES = 64 * 2 ** 20;
const MAX_CONFIG_BYTES = 16 * 2 ** 20;

export interface Vocabulary {
  readonly table: RankTable;
  /** Named special tokens whose ids the model has rows for. */
  readonly specials: readonly (readonly [string, number])[];
  /** Added tokens with ids beyond the model's rows (leftovers of an older model in the release); they are never encoded. */
  readonly ignored: readonly (readonly [string, number])[];
  readonly sha256: string;
  /** Whether this is, byte by byte, the published vocabulary. */
  readonly released: boolean;
}

/**
 * Reads and checks the vocabulary of a model directory: `tiktoken.model` strictly, the named specials from `added_tokens_decoder` of
 * `tokenizer_config.json`, and the count against `vocab_size` of `config.json` where that file exists (vocab_size = base + 256).
 * Throws E_DATA when a file is missing, or the size or hash is not what it must be, with both values; E_CONFIG when a file is malformed.
 */
export async function readVocabulary(modelDir: string): Promise<Vocabulary> {
  const path = join(modelDir, "tiktoken.model");
  const bytes = await readBounded(path, MAX_MODEL_BYTES);
  const table = await runInSlices(tiktokenModelSteps(bytes, path));
  const sha256 = createHash("sha256").update(bytes).digest("hex");
  checkPublished(path, table.count, bytes.length, sha256);
  await checkCount(path, table.count, join(modelDir, "config.json"));
  const { specials, ignored } = await readSpecials(join(modelDir, "tokenizer_config.json"), table.baseTokens);
  return { table, specials, ignored, sha256, released: sha256 === RELEASED_VOCABULARY.sha256 };
}

/** Encodes the known prompt. Throws E_DEFECT with both id lists when the ids are not the published ones. */
export function checkKnownPrompt(tokenizer: { encode(text: string): number[] }): void {
  const found = tokenizer.encode(KNOWN_PROMPT.text);
  if (found.join() !== KNOWN_PROMPT.ids.join()) {
    throw new StageError(
      "E_DEFECT",
      `the tokenizer encodes ${JSON.stringify(KNOWN_PROMPT.text)} as ${found.join(",")}; published is ${KNOWN_PROMPT.ids.join(",")}`,
      { details: { expected: KNOWN_PROMPT.ids, found } },
    );
  }
}

function checkPublished(path: string, count: number, bytes: number, sha256: string): void {
  if (count !== RELEASED_VOCABULARY.baseTokens || sha256 === RELEASED_VOCABULARY.sha256) return;
  throw new StageError(
    "E_DATA",
    `${path} has the ${count} tokens of the release but is not the published file: ` +
      `sha256 ${sha256} (${bytes} bytes), published ${RELEASED_VOCABULARY.sha256} (${RELEASED_VOCABULARY.bytes} bytes)`,
    {
      hint: "fetch tiktoken.model again and verify the directory (k3 verify)",
      details: { expected: RELEASED_VOCABULARY, found: { bytes, sha256 } },
    },
  );
}

async function checkCount(path: string, count: number, configPath: string): Promise<void> {
  const config = await readJsonObject(configPath, true);
  if (config === null) return;
  const text = config["text_config"];
  const vocabSize = isObject(text) ? text["vocab_size"] : config["vocab_size"];
  if (vocabSize === undefined || vocabSize === count + SPECIAL_TOKENS) return;
  throw new StageError(
    "E_DATA",
    `${path} has ${count} tokens, with ${SPECIAL_TOKENS} special ones ${count + SPECIAL_TOKENS}; ` +
      `vocab_size in ${configPath} is ${JSON.stringify(vocabSize)}`,
    {
      hint: "the vocabulary and the model do not belong together; fetch both from one commit",
      details: { expected: vocabSize, found: count + SPECIAL_TOKENS },
    },
  );
}

async function readSpecials(
  path: string,
  baseTokens: number,
): Promise<{ specials: [string, number][]; ignored: [string, number][] }> {
  const added = (await readJsonObject(path, false))?.["added_tokens_decoder"];
  if (!isObject(added)) {
    throw new StageError("E_CONFIG", `${path} has no added_tokens_decoder, which names the special tokens`);
  }
  const specials: [string, number][] = [];
  const ignored: [string, number][] = [];
  for (const [key, entry] of Object.entries(added)) {
    const content = isObject(entry) ? entry["content"] : undefined;
    if (!/^(0|[1-9]\d{0,9})$/.test(key) || typeof content !== "string") {
      throw new StageError(
        "E_CONFIG",
        `${path}: added_tokens_decoder[${JSON.stringify(key).slice(0, 40)}] must be an id with a "content"`,
      );
    }
    const id = Number(key);
    (id < baseTokens + SPECIAL_TOKENS ? specials : ignored).push([content, id]);
  }
  return { specials, ignored };
}

async function readJsonObject(path: string, optional: boolean): Promise<Record<string, unknown> | null> {
  let parsed: unknown;
  try {
    parsed = JSON.parse((await readBounded(path, MAX_CONFIG_BYTES)).toString("utf8"));
  } catch (error) {
    if (error instanceof SyntaxError)
      throw new StageError("E_CONFIG", `${path} is not JSON: ${error.message}`, { cause: error });
    if (optional && error instanceof StageError && isMissing(error.cause)) return null;
    throw error;
  }
  if (!isObject(parsed)) throw new StageError("E_CONFIG", `${path} is not a JSON object`);
  return parsed;
}

async function readBounded(path: string, limit: number): Promise<Buffer> {
  try {
    const { size } = await stat(path);
    if (size > limit) {
      throw new StageError("E_CONFIG", `${path} has ${size} bytes; more than ${limit} are not read`, {
        details: { size, limit },
      });
    }
    return await readRegularFile(path);
  } catch (error) {
    throw toStageError(error);
  }
}

function isMissing(cause: unknown): boolean {
  return (cause as NodeJS.ErrnoException | undefined)?.code === "ENOENT";
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
