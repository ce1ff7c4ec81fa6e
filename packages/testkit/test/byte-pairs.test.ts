import fc from "fast-check";
import { expect, test } from "vitest";
import { BytePairs, MINIATURE_SPECIALS, miniatureVocabulary } from "../src/index.ts";
import { splitPieces } from "../src/pattern.ts";

test("pieces as the published pattern cuts them", () => {
  // Worked out by hand from the pattern's alternatives.
  const cases: [text: string, pieces: string[]][] = [
    ["The capital of France is", ["The", " capital", " of", " France", " is"]],
    ["don't WE'RE it’s", ["don't", " WE'RE", " it", "’s"]],
    ["helloWorld", ["hello", "World"]],
    ["你好hello 世界", ["你好", "hello", " ", "世界"]],
    ["1234567", ["123", "456", "7"]],
    ["a    b", ["a", "   ", " b"]],
    ["x = y;\n\n  z", ["x", " =", " y", ";\n\n", " ", " z"]],
    ["line\r\n\r\n", ["line", "\r\n\r\n"]],
    ["ſ'ſ", ["ſ'ſ"]],
  ];
  for (const [text, pieces] of cases) expect({ text, pieces: splitPieces(text) }).toEqual({ text, pieces });
});

test("the vocabulary has all single bytes and 768 distinct tokens, and round-trips its file", async () => {
  const { ranks } = miniatureVocabulary();
  expect(ranks.size).toBe(768);
  expect(new Set(ranks.values()).size).toBe(768);
  for (let byte = 0; byte < 256; byte++) expect(ranks.get(String.fromCharCode(byte))).toBe(byte);
  const named = Object.entries(MINIATURE_SPECIALS).map(([name, id]) => [id - 768, name]);
  expect(named.slice(0, 6)).toEqual([
    [0, "[BOS]"],
    [1, "[EOS]"],
    [2, "<|end_of_msg|>"],
    [3, "<|open|>"],
    [4, "<|close|>"],
    [5, "<|sep|>"],
  ]);
});

test("the lowest rank merges first, not the leftmost pair", () => {
  const pairs = new BytePairs(new Map([..."abc", "bc", "ab", "abc"].map((token, rank) => [token, rank])));
  expect(pairs.encode("abab")).toEqual([4, 4]);
  const whole = new BytePairs(new Map([..."abcd", "bc", "ab", "cd"].map((token, rank) => [token, rank])));
  expect(whole.encode("abcd")).toEqual([0, 4, 3]);
});

test("any text decodes to itself, and pieces are all of it", () => {
  const pairs = miniatureVocabulary();
  fc.assert(
    fc.property(fc.string({ unit: "grapheme", maxLength: 60 }), (text) => {
      expect(splitPieces(text).join("")).toBe(text);
      expect(pairs.decode(pairs.encode(text))).toBe(text);
    }),
    { numRuns: 500 },
  );
});
