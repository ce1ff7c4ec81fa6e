// The npm tiktoken package (another implementation, another regular expression engine) as the oracle.
import { Tiktoken } from "tiktoken";
import { afterAll, describe, expect, test } from "vitest";
import { createTokenizer } from "../src/text/index.ts";
import {
  generator,
  madeUpRanks,
  pick,
  randomText,
  specialsAfter,
  tiktokenModel,
} from "./text-made-up-vocabulary.ts";

/** The pattern as it was published, in the syntax of tiktoken. */
const PUBLISHED_PATTERN = [
  String.raw`[\p{Han}]+`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`\p{N}{1,3}`,
  String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*`,
  String.raw`\s*[\r\n]+`,
  String.raw`\s+(?!\S)`,
  String.raw`\s+`,
].join("|");

const BASE = 6000;
const STRINGS = process.env["K3_NIGHTLY"] === "1" ? 60_000 : 6_000;
const ranks = madeUpRanks(7, BASE);
const specials = specialsAfter(BASE);
const ours = createTokenizer({ ranks, baseTokens: BASE, specials });
const oracle = new Tiktoken(tiktokenModel(ranks), Object.fromEntries(ours.specials), PUBLISHED_PATTERN);
afterAll(() => oracle.free());

describe("against tiktoken", () => {
  test(`${STRINGS} random strings`, () => {
    const random = generator(11);
    for (let i = 0; i < STRINGS; i++) {
      const text = randomText(random, 40);
      const expected = [...oracle.encode_ordinary(text)];
      expect(ours.encode(text), JSON.stringify(text)).toEqual(expected);
    }
  }, 900_000);

  const nightly = process.env["K3_NIGHTLY"] === "1";
  test(`${nightly ? "every" : "every 13th"} code point among letters, digits, spaces and Han`, () => {
    // Tokens that join the last byte of a character with what follows show where the text was split.
    const bytes = Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]));
    const joints = Array.from({ length: 64 }, (_, last) =>
      [..."aA1!你 '"].map((next) => Buffer.from([0x80 + last, Buffer.from(next)[0]!])),
    );
    const known = new Map([...bytes, ...joints.flat()].map((token) => [token.toString("latin1"), token]));
    const probes = [...known.values()].map((token, rank): [Uint8Array, number] => [token, rank]);
    const reference = new Tiktoken(tiktokenModel(probes), {}, PUBLISHED_PATTERN);
    const probed = createTokenizer({ ranks: probes, baseTokens: probes.length, specials: {} });
    const differing: string[] = [];
    for (let codePoint = 0x80; codePoint < 0x110000; codePoint += nightly ? 1 : 13) {
      if (codePoint >= 0xd800 && codePoint <= 0xdfff) continue;
      const x = String.fromCodePoint(codePoint);
      const text = `${x}a${x}A${x}1${x}!${x}你${x}你 ${x}a${x}'s A${x}a`;
      if (probed.encode(text).join() !== [...reference.encode_ordinary(text)].join())
        differing.push(codePoint.toString(16));
    }
    reference.free();
    expect(differing).toEqual([]);
  }, 900_000);

  test("long pieces, where merging goes by a heap", () => {
    const random = generator(13);
    const alphabet = ["a", "b", "the", "hello", "Paris", "world", "ing", "ello", "п", "привет", "は"];
    for (let i = 0; i < 60; i++) {
      let text = "";
      const wanted = 60 + Math.floor(random() * 1500);
      while (text.length < wanted) text += pick(random, alphabet);
      expect(ours.encode(text), text).toEqual([...oracle.encode_ordinary(text)]);
    }
  });

  test("special tokens among text", () => {
    const random = generator(17);
    const literals = [...ours.specials.keys()];
    for (let i = 0; i < 500; i++) {
      let text = "";
      for (let left = 4; left > 0; left--)
        text += randomText(random, 4) + (random() < 0.7 ? pick(random, literals) : "<|open");
      expect(ours.encode(text, { allowSpecial: true }), text).toEqual([...oracle.encode(text, "all")]);
      expect(ours.encode(text), text).toEqual([...oracle.encode_ordinary(text)]);
    }
  });
});
