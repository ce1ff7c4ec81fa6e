import { join } from "node:path";
import { StageError } from "@k3/stage";
import { parseObject, readConfig, readSmallFile } from "./config.ts";
import { isObject } from "./fields.ts";

const MAX_BYTES = 64 * 1024 * 1024;

/**
 * The token ids that end a generation, ascending: those of config.json and generation_config.json (`eos_token_id`, a
 * number or a list) and the id of the `eos_token` that tokenizer_config.json names. In the release that is
 * 163586 `<|end_of_msg|>` by the first two and 163585 `[EOS]` by the third. Files that are absent add nothing; one with
 * another content in that place is E_CONFIG, and so is an id outside the vocabulary.
 */
export async function endIdsOf(dir: string): Promise<number[]> {
  const { config } = await readConfig(dir);
  const ids = new Set(config.endIds);
  const generation = await optionalObject(join(dir, "generation_config.json"));
  for (const id of idList(generation?.value["eos_token_id"], generation?.path ?? "")) ids.add(id);
  const tokenizer = await optionalObject(join(dir, "tokenizer_config.json"));
  const id = tokenizer && idOfToken(tokenizer.value);
  if (id !== undefined) ids.add(id);
  const outside = [...ids].filter((id) => id >= config.vocabSize);
  if (outside.length > 0) {
    throw new StageError(
      "E_CONFIG",
      `${dir}: end id ${outside.join(", ")} is outside the vocabulary of ${config.vocabSize}`,
    );
  }
  return [...ids].sort((a, b) => a - b);
}

async function optionalObject(
  path: string,
): Promise<{ path: string; value: Record<string, unknown> } | undefined> {
  const bytes = await readSmallFile(path, MAX_BYTES);
  return bytes && { path, value: parseObject(bytes, path) };
}

function idList(value: unknown, path: string): number[] {
  if (value === undefined || value === null) return [];
  const list = Array.isArray(value) ? value : [value];
  if (list.every((id) => Number.isInteger(id) && id >= 0)) return list as number[];
  throw new StageError("E_CONFIG", `${path}: eos_token_id is no token id and no list of them`);
}

/** The id under which `added_tokens_decoder` has the `eos_token` (a string, or an object with `content`). */
function idOfToken(tokenizer: Record<string, unknown>): number | undefined {
  const named = tokenizer["eos_token"];
  const content = isObject(named) ? named["content"] : named;
  const added = tokenizer["added_tokens_decoder"];
  if (typeof content !== "string" || !isObject(added)) return undefined;
  for (const [id, token] of Object.entries(added)) {
    if (isObject(token) && token["content"] === content && /^\d{1,9}$/.test(id)) return Number(id);
  }
  return undefined;
}
