import { StageError } from "@k3/stage";

/**
 * The split pattern of the released tokenizer (tokenization_kimi.py), rewritten for the `v` flag:
 * `\p{Han}` is `\p{Script=Han}`; `[A&&[^\p{Han}]]` is a class difference; the case-insensitive contractions are written out (by
 * Unicode case folding a long s, U+017F, also matches s); `\s` is `\p{White_Space}`, because JavaScript's `\s` has U+FEFF and
 * lacks U+0085. The first alternative that matches wins.
 */
const UPPER = String.raw`[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--\p{Script=Han}]`;
const LOWER = String.raw`[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--\p{Script=Han}]`;
const CONTRACTION = "(?:'[sS\u017f]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?";
const SPACE = String.raw`\p{White_Space}`;
const SPLIT = new RegExp(
  [
    String.raw`\p{Script=Han}+`,
    String.raw`[^\r\n\p{L}\p{N}]?${UPPER}*${LOWER}+${CONTRACTION}`,
    String.raw`[^\r\n\p{L}\p{N}]?${UPPER}+${LOWER}*${CONTRACTION}`,
    String.raw`\p{N}{1,3}`,
    String.raw` ?[^${SPACE}\p{L}\p{N}]+[\r\n]*`,
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
