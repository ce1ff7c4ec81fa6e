// Load time and speed of the tokenizer with 163,584 made-up ranks, beside the npm tiktoken package in the same run.
// Build first (npx tsc -b packages/engine), then: node packages/engine/bench/tokenizer.mjs
import { Buffer } from "node:buffer";
import { Tiktoken } from "tiktoken";
import { RELEASED_CAPS, splitPieces } from "../dist/text/split-pattern.js";
import { parseTiktokenModel } from "../dist/text/tiktoken-model.js";
import { createTokenizer } from "../dist/text/tokenizer.js";

if (process.argv.includes("--help")) {
  console.log("node packages/engine/bench/tokenizer.mjs");
  process.exit(0);
}
const BASE = 163_584;
const ROUNDS = 5;
const PATTERN = [
  String.raw`[\p{Han}]+`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?`,
  String.raw`\p{N}{1,3}`,
  String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*`,
  String.raw`\s*[\r\n]+`,
  String.raw`\s+(?!\S)`,
  String.raw`\s+`,
].join("|");

let state = 1;
const random = () => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const letter = (letters) => letters[Math.floor(random() * letters.length)];
const COMMON = [..."eeeeetttaaooiinnsshhrrdlcumwfgypbvk"];
const CYRILLIC = [..."оеаинтсрвлкмдпуяыьгзб"];
const word = (letters) => {
  let text = letter(letters);
  while (random() < 0.78) text += letter(letters);
  return text;
};

/** A vocabulary whose tokens are beginnings of words, so that merging has work to do. */
function madeUpTokens() {
  const tokens = new Set(Array.from({ length: 256 }, (_, byte) => String.fromCharCode(byte)));
  while (tokens.size < BASE) {
    const bytes = Buffer.from(
      (random() < 0.6 ? " " : "") + word(random() < 0.8 ? COMMON : CYRILLIC),
      "utf8",
    ).toString("latin1");
    for (let end = 2; end <= bytes.length && tokens.size < BASE; end++) tokens.add(bytes.slice(0, end));
  }
  return [...tokens];
}

function text(letters, characters) {
  let all = "";
  while (all.length < characters) {
    const kind = random();
    all +=
      kind < 0.85
        ? ` ${word(letters)}`
        : kind < 0.9
          ? `, ${word(letters)}`
          : kind < 0.95
            ? ` ${Math.floor(random() * 1e5)}`
            : ".\n";
  }
  return all;
}

function best(work) {
  let least = Number.POSITIVE_INFINITY;
  let result;
  for (let round = 0; round < ROUNDS; round++) {
    const start = performance.now();
    result = work();
    least = Math.min(least, performance.now() - start);
  }
  return { seconds: least / 1000, result };
}

// Samples stay below the cap of 400,000 characters, at which ours cuts and tiktoken alone does not.
const tokens = madeUpTokens();
const lines = tokens
  .map((token, rank) => `${Buffer.from(token, "latin1").toString("base64")} ${rank}\n`)
  .join("");
const file = Buffer.from(lines);
const before = process.memoryUsage();
const parsed = best(() => parseTiktokenModel(file, "tiktoken.model"));
const after = process.memoryUsage();
console.log(
  `parse ${BASE} ranks (${(file.length / 1e6).toFixed(1)} MB): ${(parsed.seconds * 1000).toFixed(0)} ms`,
);
console.log(
  `array buffers of ${ROUNDS} tables: ${((after.arrayBuffers - before.arrayBuffers) / 1e6).toFixed(1)} MB`,
);
const ranks = tokens.map((token, rank) => [Buffer.from(token, "latin1"), rank]);
const made = best(() => createTokenizer({ ranks, baseTokens: BASE, specials: {} }));
console.log(`createTokenizer from arrays: ${(made.seconds * 1000).toFixed(0)} ms`);
const started = performance.now();
const tiktoken = new Tiktoken(lines, {}, PATTERN);
console.log(`tiktoken init: ${(performance.now() - started).toFixed(0)} ms`);

const ours = made.result;
for (const [name, sample] of [
  ["latin text", text(COMMON, 390_000)],
  ["cyrillic text", text(CYRILLIC, 390_000)],
]) {
  const megabytes = Buffer.byteLength(sample) / 1e6;
  const own = best(() => ours.encode(sample));
  const theirs = best(() => tiktoken.encode_ordinary(sample));
  const split = best(() => splitPieces(sample));
  const decoded = best(() => ours.decode(own.result));
  console.log(
    `${name}: ${(megabytes / own.seconds).toFixed(1)} MB/s, tiktoken ${(megabytes / theirs.seconds).toFixed(1)} MB/s, ` +
      `ratio ${(theirs.seconds / own.seconds).toFixed(1)}; splitting alone ${(megabytes / split.seconds).toFixed(1)} MB/s; ` +
      `decode ${(megabytes / decoded.seconds).toFixed(0)} MB/s; same ids: ${own.result.join() === [...theirs.result].join()}`,
  );
}
for (const unit of ["a", "e", " ", "о", "あ", "你", "!", "\n"]) {
  const run = unit.repeat(RELEASED_CAPS.maxChars);
  const { seconds, result } = best(() => ours.encode(run));
  console.log(
    `${RELEASED_CAPS.maxChars} of ${JSON.stringify(unit)}: ${(seconds * 1000).toFixed(0)} ms, ${result.length} ids`,
  );
}
tiktoken.free();
