import { StageError } from "@k3/stage";

/**
 * Letters, marks and numbers that Unicode 17 added (Han characters among them). tiktoken, on which the released tokenizer is built, splits by the
 * tables of Unicode 16 (1.0.22, every code point compared), where these are unassigned; taking them out makes the ids
 * independent of the Unicode version of the JavaScript engine, up to 17.
 */
const ADDED_IN_UNICODE_17 = ranges(
  "088f 0c5c 0cdc 1acf-1add 1ae0-1aeb a7ce-a7cf a7d2 a7d4 a7f1 10940-10959 10ec5-10ec7 10efa-10efb 11b60-11b67 11db0-11ddb " +
    "11de0-11de9 16ea0-16eb8 16ebb-16ed3 16ff2-16ff6 187f8-187ff 18d09-18d1e 18d80-18df2 1e6c0-1e6de 1e6e0-1e6f5 1e6fe-1e6ff " +
    "2b73a-2b73f 2cea2-2cead 323b0-33479",
);

/**
 * The split pattern of the released tokenizer (tokenization_kimi.py), rewritten for the `v` flag:
 * `\p{Han}` is `\p{Script=Han}`; `[A&&[^\p{Han}]]` is a class difference; the case-insensitive contractions are written out (by
 * Unicode case folding a long s, U+017F, also matches s); `\s` is `\p{White_Space}`, because JavaScript's `\s` has U+FEFF and
 * lacks U+0085. The first alternative that matches wins.
 */
const HAN = String.raw`[\p{Script=Han}--[${ADDED_IN_UNICODE_17}]]`;
const UPPER = String.raw`[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--[\p{Script=Han}${ADDED_IN_UNICODE_17}]]`;
const LOWER = String.raw`[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--[\p{Script=Han}${ADDED_IN_UNICODE_17}]]`;
const NUMBER = String.raw`[\p{N}--[${ADDED_IN_UNICODE_17}]]`;
const LETTER_OR_NUMBER = String.raw`[[\p{L}\p{N}]--[${ADDED_IN_UNICODE_17}]]`;
const SPACE = String.raw`\p{White_Space}`;
const CONTRACTION = "(?:'[sS\u017f]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?";
const SPLIT = new RegExp(
  [
    `${HAN}+`,
    String.raw`[^\r\n${LETTER_OR_NUMBER}]?${UPPER}*${LOWER}+${CONTRACTION}`,
    String.raw`[^\r\n${LETTER_OR_NUMBER}]?${UPPER}+${LOWER}*${CONTRACTION}`,
    `${NUMBER}{1,3}`,
    String.raw` ?[^${SPACE}${LETTER_OR_NUMBER}]+[\r\n]*`,
    String.raw`${SPACE}*[\r\n]+`,
    String.raw`${SPACE}+(?!\P{White_Space})`,
    `${SPACE}+`,
  ].join("|"),
  "gv",
);

/** What Python's `str.isspace` accepts: White_Space and the four information separators. */
const PYTHON_SPACE = /[\p{White_Space}\x1c-\x1f]/v;

export interface LengthCaps {
  /** A text is first cut into chunks of at most this many characters (code points). Default 400,000. */
  readonly maxChars: number;
  /** Within a chunk, runs of spaces and runs of other characters are cut after this many. Default 25,000. */
  readonly maxRun: number;
}

/** The caps of the released tokenizer. */
export const RELEASED_CAPS: LengthCaps = { maxChars: 400_000, maxRun: 25_000 };

/** Cuts a well-formed string into the pieces that the split pattern finds; joined, they are the string. */
export function splitPieces(text: string): readonly string[] {
  const pieces = text.match(SPLIT) ?? [];
  let covered = 0;
  for (const piece of pieces) covered += piece.length;
  if (covered !== text.length) {
    throw new StageError("E_DEFECT", `the split pattern covers ${covered} of ${text.length} UTF-16 units`);
  }
  return pieces;
}

/** Cuts a well-formed string at the length caps (k3-model 5.2); joined, the parts are the string. */
export function cutAtCaps(text: string, caps: LengthCaps): string[] {
  const parts: string[] = [];
  for (const chunk of cutEvery(text, caps.maxChars)) cutRuns(chunk, caps.maxRun, parts);
  return parts;
}

function cutEvery(text: string, maxChars: number): string[] {
  if (text.length <= maxChars) return [text];
  const chunks: string[] = [];
  let start = 0;
  let characters = 0;
  for (let i = 0; i < text.length; i += unitsAt(text, i)) {
    if (characters === maxChars) {
      chunks.push(text.slice(start, i));
      start = i;
      characters = 0;
    }
    characters += 1;
  }
  chunks.push(text.slice(start));
  return chunks;
}

function cutRuns(chunk: string, maxRun: number, parts: string[]): void {
  if (chunk.length <= maxRun) {
    parts.push(chunk);
    return;
  }
  let start = 0;
  let run = 0;
  let inSpace = false;
  for (let i = 0; i < chunk.length; i += unitsAt(chunk, i)) {
    const space = isPythonSpace(chunk.codePointAt(i)!);
    if (space !== inSpace) {
      inSpace = space;
      run = 0;
    } else if (run === maxRun) {
      parts.push(chunk.slice(start, i));
      start = i;
      run = 0;
    }
    run += 1;
  }
  parts.push(chunk.slice(start));
}

/** "a7ce-a7cf a7d2" as the inside of a character class. */
function ranges(list: string): string {
  return list.replace(/[0-9a-f]+/g, String.raw`\u{$&}`).replaceAll(" ", "");
}

function unitsAt(text: string, at: number): 1 | 2 {
  const unit = text.charCodeAt(at);
  return unit >= 0xd800 && unit <= 0xdbff ? 2 : 1;
}

function isPythonSpace(codePoint: number): boolean {
  if (codePoint < 0x80)
    return (
      codePoint === 0x20 ||
      (codePoint >= 0x09 && codePoint <= 0x0d) ||
      (codePoint >= 0x1c && codePoint <= 0x1f)
    );
  return codePoint <= 0x3000 && PYTHON_SPACE.test(String.fromCodePoint(codePoint));
}
