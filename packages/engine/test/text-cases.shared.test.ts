// Ids recorded from the first-party tokenizer. The recording stays outside of this repository.
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { createTokenizer } from "../src/text/index.ts";
import { close, encodeSegments, open } from "../src/text/segments.ts";

interface Recording {
  base_tokens: number;
  specials: Record<string, number>;
  ranks: [string, number][];
  cases: { name: string; text: string; ids: number[] }[];
}

const shared = process.env["K3_SHARED"];
const path = `${shared}/data/released/tokenizer-cases.json`;

describe.skipIf(shared === undefined)(
  `recorded tokenizer cases${shared === undefined ? " (skipped: K3_SHARED is not set)" : ""}`,
  () => {
    const recording: Recording =
      shared === undefined
        ? { base_tokens: 1, specials: {}, ranks: [], cases: [] }
        : (JSON.parse(readFileSync(path, "utf8")) as Recording);
    const tokenizer = createTokenizer({
      ranks: recording.ranks.map(([base64, rank]) => [Uint8Array.from(Buffer.from(base64, "base64")), rank]),
      baseTokens: recording.base_tokens,
      specials: recording.specials,
    });

    test("all 34 are there", () => {
      expect(recording.cases).toHaveLength(34);
    });

    for (const { name, text, ids } of recording.cases) {
      test(name, () => {
        expect(tokenizer.encode(text, { allowSpecial: true })).toEqual(ids);
        expect(tokenizer.decode(ids)).toBe(text);
      });
    }

    test("a turn encoded segment by segment has the ids of the whole string", () => {
      const { ids } = recording.cases.find(({ name }) => name === "xtml_turn")!;
      const segments = [
        ...open("message", [["role", "user"]]),
        { text: "hello" },
        ...close("message"),
        { special: "<|end_of_msg|>" },
      ];
      expect(encodeSegments(tokenizer, segments)).toEqual(ids);
    });

    test("line1\\r\\nline2, hello with three spaces, a slot's reserved name that is taken", () => {
      expect(tokenizer.encode("line1\r\nline2")).toEqual([1611, 16, 462, 1611, 17]);
      expect(tokenizer.encode("hello   ")).toEqual([22931, 274]);
      expect(tokenizer.specials.has("<|reserved_token_163839|>")).toBe(false);
      expect(
        tokenizer.encode("<|reserved_token_163839|>", { allowSpecial: true }).every((id) => id < 163_584),
      ).toBe(true);
    });
  },
);
