import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { loadTokenizer } from "../src/text/index.ts";
import { checkKnownPrompt, readVocabulary } from "../src/text/vocabulary.ts";
import { madeUpRanks, type Ranks, specialsAfter, tiktokenModel } from "./text-made-up-vocabulary.ts";

const BASE = 600;
const ranks = madeUpRanks(1, BASE);
const model = tiktokenModel(ranks);

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-vocabulary-"));
});
afterAll(() => rm(dir, { recursive: true }));
beforeEach(async () => {
  await write("tiktoken.model", model);
  await write("tokenizer_config.json", config(specialsAfter(BASE)));
  await rm(join(dir, "config.json"), { force: true });
});

function write(name: string, content: string): Promise<void> {
  return writeFile(join(dir, name), content);
}

function config(specials: Record<string, number>): string {
  const added = Object.fromEntries(
    Object.entries(specials).map(([content, id]) => [id, { content, special: false }]),
  );
  return JSON.stringify({ tokenizer_class: "TikTokenTokenizer", added_tokens_decoder: added });
}

const refused = (code: string, message: string | RegExp) =>
  expect.objectContaining({
    code,
    message: typeof message === "string" ? expect.stringContaining(message) : expect.stringMatching(message),
  }) as Error;

test("loads what was written", async () => {
  const tokenizer = await loadTokenizer(dir);
  expect(tokenizer.baseTokens).toBe(BASE);
  expect(tokenizer.specials.get("<|sep|>")).toBe(BASE + 5);
  for (const [bytes, rank] of ranks) expect(tokenizer.decodeBytes([rank])).toEqual(bytes);
});

test("the order of lines and a missing last newline do not matter", async () => {
  await write("tiktoken.model", model.trimEnd().split("\n").reverse().join("\n"));
  const tokenizer = await loadTokenizer(dir);
  for (const [bytes, rank] of ranks) expect(tokenizer.decodeBytes([rank])).toEqual(bytes);
});

test("added tokens beyond the model's rows are left out, not refused", async () => {
  await write(
    "tokenizer_config.json",
    config({ ...specialsAfter(BASE), "<|im_end|>": BASE + 256, "<|im_user|>": BASE + 300 }),
  );
  const vocabulary = await readVocabulary(dir);
  expect(vocabulary.ignored).toEqual([
    ["<|im_end|>", BASE + 256],
    ["<|im_user|>", BASE + 300],
  ]);
  const tokenizer = await loadTokenizer(dir);
  expect(tokenizer.encode("<|im_end|>", { allowSpecial: true }).every((id) => id < BASE)).toBe(true);
});

describe("refused files", () => {
  const lines = model.trimEnd().split("\n");
  const replaced = (at: number, line: string) =>
    [...lines.slice(0, at), line, ...lines.slice(at + 1), ""].join("\n");
  test.each<[string, string, RegExp]>([
    ["an empty file", "", /has 0 lines/],
    ["a blank line", replaced(4, ""), /line 5 is not/],
    ["no rank", replaced(4, "IQ=="), /line 5 is not/],
    ["two spaces", replaced(4, "IQ==  4"), /line 5 is not/],
    ["a carriage return", replaced(4, `${lines[4]}\r`), /line 5 is not/],
    ["a rank with a leading zero", replaced(4, lines[4]!.replace(" ", " 0")), /line 5 is not/],
    ["a negative rank", replaced(4, lines[4]!.replace(" ", " -")), /line 5 is not/],
    ["a rank beyond the lines", replaced(4, `${lines[4]!.split(" ")[0]} 600`), /line 5: rank 600/],
    ["a huge rank", replaced(4, `${lines[4]!.split(" ")[0]} 99999999999999999999`), /line 5 is not/],
    [
      "a rank twice",
      replaced(4, `AAAAAAAAAAAA ${lines[3]!.split(" ")[1]}`),
      /line 5: rank \d+ is given twice/,
    ],
    [
      "bytes twice",
      replaced(599, `${lines[3]!.split(" ")[0]} 599`),
      /line 600: ranks 3 and 599 have the same bytes/,
    ],
    ["no bytes", replaced(4, ` ${lines[4]!.split(" ")[1]}`), /line 5 is not/],
    ["base64 without padding", replaced(599, "YWE 599"), /line 600 is not/],
    ["base64 with bits left over", replaced(599, "YWF= 599"), /line 600 is not/],
    ["base64 with too much padding", replaced(599, "Y=== 599"), /line 600 is not/],
    ["padding within", replaced(599, "YQ==YQ== 599"), /line 600 is not/],
    ["another alphabet", replaced(599, "Y-_h 599"), /line 600 is not/],
    ["a byte without a token", replaced(4, "AAAAAAAAAAAA 4"), /no token for the single byte/],
  ])("tiktoken.model with %s", async (_, content, message) => {
    await write("tiktoken.model", content);
    await expect(loadTokenizer(dir)).rejects.toThrow(refused("E_CONFIG", message));
  });

  test.each<[string, string, RegExp]>([
    ["not JSON", "{", /is not JSON/],
    ["not an object", "[]", /not a JSON object/],
    ["without added tokens", "{}", /no added_tokens_decoder/],
    ["an id that is no number", '{"added_tokens_decoder":{"6e2":{"content":"x"}}}', /must be an id/],
    ["a token without content", '{"added_tokens_decoder":{"601":{}}}', /must be an id/],
    [
      "an id within the base vocabulary",
      '{"added_tokens_decoder":{"5":{"content":"x"}}}',
      /its id 5 is not one of the 256/,
    ],
    [
      "one name for two ids",
      config({}).replace("{}", '{"600":{"content":"x"},"601":{"content":"x"}}'),
      /given twice/,
    ],
  ])("tokenizer_config.json: %s", async (_, content, message) => {
    await write("tokenizer_config.json", content);
    await expect(loadTokenizer(dir)).rejects.toThrow(refused("E_CONFIG", message));
  });

  test.each(["tiktoken.model", "tokenizer_config.json"])("a missing %s", async (name) => {
    await rm(join(dir, name));
    await expect(loadTokenizer(dir)).rejects.toThrow(refused("E_DATA", name));
  });
});

test("a vocabulary that does not fit the config is refused with both sizes", async () => {
  await write("config.json", JSON.stringify({ text_config: { vocab_size: BASE + 256 } }));
  await loadTokenizer(dir);
  await write("config.json", JSON.stringify({ text_config: { vocab_size: 163_840 } }));
  await expect(loadTokenizer(dir)).rejects.toThrow(
    refused("E_DATA", /856; vocab_size in .*config\.json is 163840/),
  );
});

test("a vocabulary of the released size with another hash is refused with both hashes", async () => {
  const many: Ranks = madeUpRanks(2, 163_584);
  await write("tiktoken.model", tiktokenModel(many));
  const found = expect.stringMatching(
    /sha256 [0-9a-f]{64} .*published b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103/,
  );
  await expect(loadTokenizer(dir)).rejects.toThrow(
    expect.objectContaining({ code: "E_DATA", message: found }) as Error,
  );
});

test("the known prompt is compared with the published ids", () => {
  expect(() => checkKnownPrompt({ encode: () => [1008, 10484, 318, 15383, 387] })).not.toThrow();
  expect(() => checkKnownPrompt({ encode: () => [1008, 10484, 318, 15383] })).toThrow(
    refused("E_DEFECT", "as 1008,10484,318,15383; published is 1008,10484,318,15383,387"),
  );
});
