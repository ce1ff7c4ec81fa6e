// Runs every example of docs/tokenizer-and-chat.md and compares what it prints with what the page says.
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { formatWithOptions } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import * as engine from "../src/text/index.ts";
import { madeUpRanks, specialsAfter, tiktokenModel } from "./text-made-up-vocabulary.ts";

const page = readFileSync(new URL("../../../docs/tokenizer-and-chat.md", import.meta.url), "utf8");
const examples = [
  ...page.matchAll(/^## ([^\n]+)\n(?:(?!^## )[\s\S])*?```js\n([\s\S]*?)```\n\n```text\n([\s\S]*?)\n```/gm),
];

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-docs-"));
  await writeFile(join(dir, "tiktoken.model"), tiktokenModel(madeUpRanks(1, 900)));
  const added = Object.entries(specialsAfter(900)).map(([content, id]) => [id, { content }]);
  await writeFile(
    join(dir, "tokenizer_config.json"),
    JSON.stringify({ added_tokens_decoder: Object.fromEntries(added) as object }),
  );
});
afterAll(() => rm(dir, { recursive: true }));

test("all examples are found", () => {
  expect(examples).toHaveLength(page.match(/^```js$/gm)!.length);
  expect(examples.length).toBeGreaterThan(8);
});

for (const [, title, code, expected] of examples) {
  test(title!, async () => {
    const body = code!
      .replace(/^import (\{[^}]*\}) from "@k3\/engine";$/gm, "const $1 = engine;")
      .replaceAll("./kimi-k3", dir);
    const printed: string[] = [];
    const log = (...values: unknown[]) => printed.push(formatWithOptions({ colors: false }, ...values));
    const run = new Function("engine", "console", `return (async () => {${body}})()`) as (
      ...args: unknown[]
    ) => Promise<void>;
    await run(engine, { log });
    expect(printed.join("\n")).toBe(expected);
  });
}
