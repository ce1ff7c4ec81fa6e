// A vocabulary made from a seed: the single bytes, merges learned from sentences in several scripts, then concatenations at random.

const SENTENCES = [
  "The capital of France is Paris. Don't worry, it's what they'll say; WE'RE here, I've been, he'd go.",
  "helloWorld HTTPServer camelCase snake_case fooBarBaz 1234567890 3.14159 v2.0",
  "Привет мир, как дела? Ελληνικά γράμματα. שלום עולם مرحبا بالعالم नमस्ते दुनिया",
  "你好 世界 你好hello 中文字符，标点。こんにちは世界 カタカナ 한국어 문장입니다",
  "🚀🔥 👩‍👩‍👧‍👦 é é ñ ü ß ﬁ ſ's",
  'function main() {\n    return "x" + y;\n}\n\n\n\t// comment\r\n\r\n  a    b   ',
  '<|open|>message role="user"<|sep|> {"name":"get_weather","arguments":{"city":"Paris"}} # Tools',
];

export const TEST_SPECIALS: Readonly<Record<string, number>> = {
  "[BOS]": 0,
  "[EOS]": 1,
  "<|end_of_msg|>": 2,
  "<|open|>": 3,
  "<|close|>": 4,
  "<|sep|>": 5,
  "[EOT]": 9,
  "<|media_begin|>": 18,
  "<|media_pad|>": 21,
  "[UNK]": 254,
  "[PAD]": 255,
};

export type Ranks = [Uint8Array, number][];

/** Named specials at their places after `baseTokens`. */
export function specialsAfter(baseTokens: number): Record<string, number> {
  return Object.fromEntries(Object.entries(TEST_SPECIALS).map(([name, slot]) => [name, baseTokens + slot]));
}

/** mulberry32: a small generator in [0, 1) for making inputs. */
export function generator(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function pick<T>(random: () => number, items: readonly T[]): T {
  return items[Math.floor(random() * items.length)]!;
}

/** `count` ranks, at least 256. The bytes of tokens are unique; the order of the single bytes depends on the seed. */
export function madeUpRanks(seed: number, count: number): Ranks {
  const random = generator(seed);
  const bytes = Array.from({ length: 256 }, (_, byte) => byte).sort(() => random() - 0.5);
  const tokens = bytes.map((byte) => String.fromCharCode(byte));
  const known = new Set(tokens);
  learnMerges(tokens, known, Math.min(count, 1500));
  while (tokens.length < count) {
    const token = pick(random, tokens) + pick(random, tokens);
    if (token.length > 24 || known.has(token)) continue;
    known.add(token);
    tokens.push(token);
  }
  return tokens.slice(0, count).map((token, rank) => [Uint8Array.from(Buffer.from(token, "latin1")), rank]);
}

/** Plain byte-pair training: the most frequent adjacent pair becomes the next token. */
function learnMerges(tokens: string[], known: Set<string>, count: number): void {
  const words = SENTENCES.flatMap((sentence) => sentence.match(/ ?[^ ]+| +/g) ?? []).map((word) => [
    ...Buffer.from(word, "utf8").toString("latin1"),
  ]);
  while (tokens.length < count) {
    const pairs = new Map<string, number>();
    for (const word of words) {
      for (let i = 0; i + 1 < word.length; i++) {
        const pair = word[i]! + word[i + 1]!;
        pairs.set(pair, (pairs.get(pair) ?? 0) + 1);
      }
    }
    let best = "";
    for (const [pair, times] of pairs) if (best === "" || times > pairs.get(best)!) best = pair;
    if (best === "") return;
    if (!known.has(best)) {
      known.add(best);
      tokens.push(best);
    }
    for (const word of words) {
      for (let i = 0; i + 1 < word.length; i++) if (word[i]! + word[i + 1]! === best) word.splice(i, 2, best);
    }
  }
}

/** The ranks as the text of a `tiktoken.model`. */
export function tiktokenModel(ranks: Ranks): string {
  return ranks.map(([bytes, rank]) => `${Buffer.from(bytes).toString("base64")} ${rank}\n`).join("");
}

const CLASSES: readonly string[][] = [
  [..."abcdefghijklmnopqrstuvwxyz"],
  [..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"],
  [..."ǅǈǋʰˇªºאبकกあアㄅ々〆"],
  [..."\u0301\u0300\u0308\u093e\u20dd\u200d\ufe0f"],
  [..."你好世界中文字符的〇\u{20000}\u{30000}"],
  [..."0123456789٠१²½Ⅷ"],
  [
    " ",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\u0085",
    "\u00a0",
    "\u2003",
    "\u2028",
    "\u3000",
    "\ufeff",
    "\x1c",
    "\x1f",
    "\v",
    "\f",
  ],
  ["'s", "'S", "'t", "'T", "'re", "'RE", "'ve", "'m", "'ll", "'lL", "'d", "'ſ", "’s", "'x", "'"],
  [...'!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~。，「」🚀🔥👩€\u0000\u0001\u007f'],
];

/** Text of up to `parts` parts: class members, words of the sentences, runs, and any code point that is not a surrogate. */
export function randomText(random: () => number, parts: number): string {
  let text = "";
  for (let left = 1 + Math.floor(random() * parts); left > 0; left--) {
    const kind = random();
    if (kind < 0.6) text += pick(random, pick(random, CLASSES));
    else if (kind < 0.85) text += pick(random, pick(random, SENTENCES).split(/(?<= )/));
    else if (kind < 0.93) text += pick(random, pick(random, CLASSES)).repeat(1 + Math.floor(random() * 9));
    else {
      const codePoint = Math.floor(random() * (random() < 0.5 ? 0x3000 : 0x110000));
      if (codePoint < 0xd800 || codePoint > 0xdfff) text += String.fromCodePoint(codePoint);
    }
  }
  return text;
}
