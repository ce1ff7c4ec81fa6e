import { StageError } from "@k3/stage";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { mergeBytePairs } from "../src/text/byte-pair.ts";
import { createTokenizer, type TokenizerOptions } from "../src/text/index.ts";
import { RankTable } from "../src/text/rank-table.ts";
import { cutAtCaps } from "../src/text/split-pattern.ts";
import { generator, madeUpRanks, pick, randomText, specialsAfter } from "./text-made-up-vocabulary.ts";

const BASE = 3000;
const ranks = madeUpRanks(3, BASE);
const tokenizer = createTokenizer({ ranks, baseTokens: BASE, specials: specialsAfter(BASE) });

function refusal(options: Partial<TokenizerOptions>): string {
  try {
    createTokenizer({ ranks, baseTokens: BASE, specials: {}, ...options });
  } catch (error) {
    if (error instanceof StageError) return `${error.code}: ${error.message}`;
    throw error;
  }
  throw new Error("was accepted");
}

/** The definition, as plainly as it can be written; quadratic. */
function mergePlainly(rankOf: ReadonlyMap<string, number>, bytes: string): number[] {
  const parts = [...bytes];
  for (;;) {
    let best = -1;
    let lowest = Number.POSITIVE_INFINITY;
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = rankOf.get(parts[i]! + parts[i + 1]!) ?? Number.POSITIVE_INFINITY;
      if (rank < lowest) [best, lowest] = [i, rank];
    }
    if (best < 0) return parts.map((part) => rankOf.get(part)!);
    parts.splice(best, 2, parts[best]! + parts[best + 1]!);
  }
}

describe("byte-pair merging", () => {
  test("pieces of every length equal the plain definition", () => {
    const table = new RankTable(BASE);
    for (const [bytes, rank] of ranks) expect(table.add(bytes, rank)).toBeNull();
    const rankOf = new Map(ranks.map(([bytes, rank]) => [Buffer.from(bytes).toString("latin1"), rank]));
    const random = generator(5);
    for (let length = 1; length <= 260; length++) {
      // Few different bytes, so that ties and chains of merges abound.
      const alphabet = [..."aeiost hr\u00d0\u00bf\u00e4"].slice(0, 2 + (length % 10));
      const bytes = Array.from({ length }, () => pick(random, alphabet)).join("");
      const ids: number[] = [];
      const buffer = Buffer.from(bytes, "latin1");
      mergeBytePairs(table, buffer, 0, length, (from, to) => ids.push(table.lookup(buffer, from, to)));
      expect(ids, bytes).toEqual(mergePlainly(rankOf, bytes));
    }
  });

  test("long runs of one class give their text back", () => {
    for (const unit of ["a", "A", " ", "\n", "あ", "你", "!", "1", "\u0301", "🚀"]) {
      const text = unit.repeat(60_000);
      expect(tokenizer.decode(tokenizer.encode(text)) === text, JSON.stringify(unit)).toBe(true);
    }
  });
});

describe("length caps", () => {
  /** Four tokens with the ids that they have in the released vocabulary, for the two published samples. */
  const published: [string, number][] = [
    ["aaaa", 36324],
    ["aa", 7028],
    ["abcd", 61858],
    ["ef", 1183],
    ["gh", 1050],
    ["ij", 3694],
  ];
  const small = (caps: { maxChars?: number; maxRun?: number }) =>
    createTokenizer({
      ranks: [
        ...[..."abcdefghij"].map((letter): [Uint8Array, number] => [
          Buffer.from(letter),
          64 + letter.charCodeAt(0) - 97,
        ]),
        ...published.map(([text, rank]): [Uint8Array, number] => [Buffer.from(text), rank]),
      ],
      baseTokens: 163_584,
      specials: {},
      caps,
    });

  test("the published samples of the inner and the outer cap", () => {
    expect(small({ maxRun: 4 }).encode("abcdefghij")).toEqual([61858, 1183, 1050, 3694]);
    expect(small({ maxChars: 6, maxRun: 4 }).encode("a".repeat(17))).toEqual([
      36324, 7028, 36324, 7028, 36324, 64,
    ]);
  });

  test.each<[string, string, number, number, string[]]>([
    ["a run is cut after the cap", "aaaaa bb", 100, 2, ["aa", "aa", "a bb"]],
    ["spaces are runs too", "a    b", 100, 3, ["a   ", " b"]],
    ["a change of class begins a new run", "ab cd ef gh", 100, 2, ["ab cd ef gh"]],
    ["an information separator is a space", "\x1c\x1d\x1e\x1fa", 100, 3, ["\x1c\x1d\x1e", "\x1fa"]],
    [
      "next line and ideographic space are spaces",
      "\u0085\u3000\u2028x",
      100,
      2,
      ["\u0085\u3000", "\u2028x"],
    ],
    ["a zero-width space and a byte order mark are none", "\u200b\ufeffx", 100, 2, ["\u200b\ufeff", "x"]],
    ["characters are counted, not UTF-16 units", "🚀🚀🚀🚀🚀", 2, 100, ["🚀🚀", "🚀🚀", "🚀"]],
    ["runs of characters above U+FFFF", "🚀🚀🚀", 100, 2, ["🚀🚀", "🚀"]],
    ["runs begin anew in each chunk", "aaaaaaaa", 3, 2, ["aa", "a", "aa", "a", "aa"]],
    ["a text at the cap is one piece", "aaa", 3, 3, ["aaa"]],
  ])("%s", (_, text, maxChars, maxRun, expected) => {
    expect(cutAtCaps(text, { maxChars, maxRun })).toEqual(expected);
  });

  test("the caps are 400,000 and 25,000 unless given", () => {
    const parts = cutAtCaps("a".repeat(400_001), { maxChars: 400_000, maxRun: 25_000 });
    expect(parts.map(({ length }) => length)).toEqual([...Array<number>(16).fill(25_000), 1]);
    const pair = createTokenizer({
      ranks: [
        [Buffer.from("a"), 0],
        [Buffer.from("aa"), 1],
      ],
      baseTokens: 2,
      specials: {},
    });
    // 25,001 letters: one cut, so the last one stays alone; uncapped they would be 12,500 pairs and one as well.
    expect(pair.encode("a".repeat(25_001)).slice(-2)).toEqual([1, 0]);
    expect(pair.encode("a".repeat(50_002))).toHaveLength(12_500 * 2 + 1);
    expect(
      createTokenizer({
        ranks: [
          [Buffer.from("a"), 0],
          [Buffer.from("aa"), 1],
        ],
        baseTokens: 2,
        specials: {},
        caps: { maxRun: 25_001 },
      }).encode("a".repeat(50_002)),
    ).toHaveLength(25_002);
  });
});

describe("special tokens", () => {
  test("every slot has a name, reserved ones by their absolute id", () => {
    expect(tokenizer.specials.size).toBe(256);
    expect(tokenizer.specials.get("<|open|>")).toBe(BASE + 3);
    expect(tokenizer.specials.get(`<|reserved_token_${BASE + 6}|>`)).toBe(BASE + 6);
    expect(tokenizer.specials.has(`<|reserved_token_${BASE + 3}|>`)).toBe(false);
    expect(tokenizer.vocabSize).toBe(BASE + 256);
  });

  test("they come from text only when allowed", () => {
    for (const [literal, id] of tokenizer.specials) {
      expect(tokenizer.encode(`x${literal}y`, { allowSpecial: true })).toContain(id);
      expect(tokenizer.encode(`x${literal}y`).every((found) => found < BASE)).toBe(true);
      expect(tokenizer.decode([id])).toBe(literal);
    }
  });

  test("the longest literal wins where several begin", () => {
    const nested = createTokenizer({
      ranks,
      baseTokens: BASE,
      specials: { "<a": BASE, "<a>b": BASE + 1, "<a>": BASE + 2 },
    });
    expect(nested.encode("<a>b<a><a", { allowSpecial: true })).toEqual([BASE + 1, BASE + 2, BASE]);
  });

  test.each<[string, Record<string, number>]>([
    ["an id within the base vocabulary", { x: BASE - 1 }],
    ["an id beyond the 256", { x: BASE + 256 }],
    ["a fraction", { x: BASE + 0.5 }],
    ["two names for an id", { x: BASE, y: BASE }],
    ["an empty name", { "": BASE }],
    ["a lone surrogate", { "\ud800": BASE }],
    ["a reserved name of another slot", { [`<|reserved_token_${BASE + 8}|>`]: BASE + 7 }],
    ["a name of unreasonable length", { ["x".repeat(10_000)]: BASE }],
  ])("refused: %s", (_, specials) => {
    expect(refusal({ specials })).toMatch(/^E_CONFIG: special token/);
  });

  test("__proto__ is a name like any other", () => {
    const specials = Object.fromEntries([["__proto__", BASE]]);
    expect(
      createTokenizer({ ranks, baseTokens: BASE, specials }).encode("__proto__", { allowSpecial: true }),
    ).toEqual([BASE]);
  });
});

describe("refused vocabularies", () => {
  test.each<[string, Partial<TokenizerOptions>, RegExp]>([
    ["a rank beyond the vocabulary", { ranks: [[Uint8Array.of(1), BASE]] }, /E_CONFIG.*rank 3000 is not/],
    ["a negative rank", { ranks: [[Uint8Array.of(1), -1]] }, /E_CONFIG.*rank -1/],
    [
      "a repeated rank",
      {
        ranks: [
          [Uint8Array.of(1), 5],
          [Uint8Array.of(2), 5],
        ],
      },
      /rank 5 is given twice/,
    ],
    [
      "repeated bytes",
      {
        ranks: [
          [Uint8Array.of(1, 2, 3), 5],
          [Uint8Array.of(1, 2, 3), 6],
        ],
      },
      /ranks 5 and 6 have the same bytes/,
    ],
    ["an empty token", { ranks: [[Uint8Array.of(), 5]] }, /rank 5 is empty/],
    ["no tokens", { baseTokens: 0 }, /E_USAGE.*baseTokens/],
    ["far too many", { baseTokens: 2 ** 31 }, /E_USAGE.*baseTokens/],
    ["a cap of nothing", { caps: { maxRun: 0 } }, /E_USAGE.*maxRun/],
  ])("%s", (_, options, message) => {
    expect(refusal(options)).toMatch(message);
  });

  test("a byte without a token is named when it is needed", () => {
    const lacking = createTokenizer({ ranks: [[Uint8Array.of(0x61), 0]], baseTokens: 1, specials: {} });
    expect(lacking.encode("aa")).toEqual([0, 0]);
    expect(() => lacking.encode("ab")).toThrow("no token for the byte 0x62");
  });
});

describe("identity", () => {
  test("any bytes", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        expect(tokenizer.decodeBytes(tokenizer.encode(bytes))).toEqual(bytes);
      }),
    );
  });

  test("text with stray bytes within", () => {
    const random = generator(23);
    for (let i = 0; i < 300; i++) {
      const parts: Buffer[] = [];
      for (let left = 5; left > 0; left--) {
        parts.push(
          Buffer.from(randomText(random, 6), "utf8"),
          Buffer.from([0x80 + Math.floor(random() * 128)]),
        );
      }
      const bytes = new Uint8Array(Buffer.concat(parts));
      expect(tokenizer.decodeBytes(tokenizer.encode(bytes))).toEqual(bytes);
    }
  });

  test("any string, as text and as its bytes", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary", maxLength: 200 }), (text) => {
        const ids = tokenizer.encode(text);
        expect(tokenizer.decode(ids)).toBe(text);
        expect(tokenizer.encode(new TextEncoder().encode(text))).toEqual(ids);
      }),
    );
  });

  const single = new Map(
    ranks.filter(([bytes]) => bytes.length === 1).map(([bytes, rank]) => [bytes[0]!, rank]),
  );
  test.each<[string, number[]]>([
    ["a truncated character", [0xe4, 0xbd]],
    ["an overlong slash", [0xc0, 0xaf]],
    ["a surrogate", [0xed, 0xa0, 0x80]],
    ["above U+10FFFF", [0xf4, 0x90, 0x80, 0x80]],
    ["lone continuations", [0x80, 0xbf]],
  ])("%s is single bytes", (_, bytes) => {
    const expected = [
      ...tokenizer.encode("hello"),
      ...bytes.map((byte) => single.get(byte)!),
      ...tokenizer.encode("world"),
    ];
    expect(
      tokenizer.encode(Buffer.from([...Buffer.from("hello"), ...bytes, ...Buffer.from("world")])),
    ).toEqual(expected);
  });

  test("a byte order mark stays, a lone surrogate becomes U+FFFD", () => {
    expect(tokenizer.decode(tokenizer.encode("\ufeffa"))).toBe("\ufeffa");
    expect(tokenizer.decode(tokenizer.encode(Buffer.from("\ufeffa")))).toBe("\ufeffa");
    expect(tokenizer.encode("a\ud83d")).toEqual(tokenizer.encode("a\ufffd"));
  });

  test("neither text nor bytes", () => {
    expect(() => tokenizer.encode(5 as unknown as string)).toThrow("not number");
  });
});

describe("decoding", () => {
  test.each([-1, BASE + 256, 0.5, Number.NaN, 2 ** 40])("the id %s is refused", (id) => {
    for (const decode of [
      () => tokenizer.decode([id]),
      () => tokenizer.decodeBytes([id]),
      () => tokenizer.decoder().push(id),
    ]) {
      expect(decode).toThrow(
        expect.objectContaining({ code: "E_USAGE", message: expect.stringContaining(String(id)) }) as Error,
      );
    }
  });

  test("a gap among the ranks is not in the vocabulary", () => {
    const gap = createTokenizer({ ranks: [[Uint8Array.of(0x61), 7]], baseTokens: 9, specials: {} });
    expect(gap.decode([7])).toBe("a");
    expect(() => gap.decode([6])).toThrow("token id 6");
  });

  test("a stream gives whole characters and joins to the text", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(BASE + 255), { maxLength: 80 }), (ids) => {
        const decoder = tokenizer.decoder();
        const joined = ids.map((id) => decoder.push(id)).join("") + decoder.end();
        expect(joined).toBe(tokenizer.decode(ids));
      }),
    );
  });

  test("valid text never shows U+FFFD, at any boundary", () => {
    const text = "你好 🚀🔥 Привет é 👩‍👩‍👧‍👦 \u{30000}";
    // One token per byte is the worst case for a stream.
    const bytes = createTokenizer({
      ranks: Array.from({ length: 256 }, (_, byte): [Uint8Array, number] => [Uint8Array.of(byte), byte]),
      baseTokens: 256,
      specials: {},
    });
    const ids = bytes.encode(text);
    expect(ids).toHaveLength(Buffer.byteLength(text));
    for (let cut = 0; cut <= ids.length; cut++) {
      const decoder = bytes.decoder();
      const shown = ids
        .slice(0, cut)
        .map((id) => decoder.push(id))
        .join("");
      expect(shown.isWellFormed() && !shown.includes("\ufffd") && text.startsWith(shown)).toBe(true);
      expect(
        shown +
          ids
            .slice(cut)
            .map((id) => decoder.push(id))
            .join("") +
          decoder.end(),
      ).toBe(text);
    }
  });

  test("a special token within a character closes it", () => {
    const [first] = tokenizer.encode(Uint8Array.of(0xe4));
    const decoder = tokenizer.decoder();
    expect(decoder.push(first!)).toBe("");
    expect(decoder.push(BASE + 1)).toBe("\ufffd[EOS]");
    expect(decoder.push(first!)).toBe("");
    expect(decoder.end()).toBe("\ufffd");
    expect(decoder.end()).toBe("");
  });
});
