import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { BytePairs, sharedDir, title } from "../src/index.ts";

const shared = sharedDir();

interface Cases {
  base_tokens: number;
  ranks: [base64: string, rank: number][];
  cases: { name: string; text: string; ids: number[] }[];
}

describe.skipIf(shared.skip)(title("against the recorded tokenizer cases", shared), () => {
  test("texts without special tokens have the recorded ids", () => {
    const path = join(shared.path!, "data/released/tokenizer-cases.json");
    const { base_tokens, ranks, cases } = JSON.parse(readFileSync(path, "utf8")) as Cases;
    const bytes = ([token, rank]: [string, number]) =>
      [Buffer.from(token, "base64").toString("latin1"), rank] as const;
    const pairs = new BytePairs(new Map(ranks.map(bytes)));
    const plain = cases.filter(({ ids }) => ids.every((id) => id < base_tokens));
    expect(plain.length).toBeGreaterThan(10);
    for (const { name, text, ids } of plain) expect({ name, ids: pairs.encode(text) }).toEqual({ name, ids });
  });
});
