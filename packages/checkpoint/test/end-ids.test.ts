import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { endIdsOf } from "../src/end-ids.ts";
import { CONFIG, temporaryDirectory } from "./tiny.ts";

async function directory(files: Record<string, unknown>): Promise<string> {
  const dir = await temporaryDirectory();
  for (const [name, value] of Object.entries({ "config.json": CONFIG, ...files })) {
    await writeFile(join(dir, name), typeof value === "string" ? value : JSON.stringify(value));
  }
  return dir;
}

/** As in the release: config and generation config name one id, the tokenizer's end token is another. */
const tokenizer = {
  eos_token: "[EOS]",
  added_tokens_decoder: {
    "44": { content: "[BOS]" },
    "45": { content: "[EOS]" },
    "46": { content: "<|end_of_msg|>" },
  },
};

test.each<[string, Record<string, unknown>, number[]]>([
  ["config.json alone", {}, [46]],
  [
    "all three files",
    { "generation_config.json": { eos_token_id: 46 }, "tokenizer_config.json": tokenizer },
    [45, 46],
  ],
  ["a list in generation_config.json", { "generation_config.json": { eos_token_id: [7, 46] } }, [7, 46]],
  [
    "an end token given as an object",
    { "tokenizer_config.json": { ...tokenizer, eos_token: { content: "[EOS]" } } },
    [45, 46],
  ],
  [
    "an end token that the tokenizer does not define",
    { "tokenizer_config.json": { ...tokenizer, eos_token: "</s>" } },
    [46],
  ],
  [
    "no id in the config",
    { "config.json": { ...CONFIG, eos_token_id: null }, "generation_config.json": { eos_token_id: 9 } },
    [9],
  ],
  ["no id anywhere", { "config.json": { ...CONFIG, eos_token_id: null } }, []],
])("%s", async (_, files, ids) => {
  expect(await endIdsOf(await directory(files))).toEqual(ids);
});

test.each<[string, Record<string, unknown>]>([
  ["an id in words", { "generation_config.json": { eos_token_id: "46" } }],
  ["an id outside the vocabulary", { "generation_config.json": { eos_token_id: 300 } }],
  ["a file that is no JSON", { "generation_config.json": "<html>" }],
])("refuses %s", async (_, files) => {
  await expect(endIdsOf(await directory(files))).rejects.toMatchObject({ code: "E_CONFIG", exit: 2 });
});
