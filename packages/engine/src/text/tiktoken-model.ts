import { runAtOnce, StageError, type Steps } from "@k3/stage";
import { MAX_BASE_TOKENS, RankTable } from "./rank-table.ts";

const NEWLINE = 0x0a;
const SPACE = 0x20;
const PADDING = 0x3d;

/** Value of each base64 digit (RFC 4648 section 4), 255 for other bytes. */
const DIGITS = new Uint8Array(256).fill(255);
for (const [value, digit] of [
  ..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
].entries()) {
  DIGITS[digit.charCodeAt(0)] = value;
}

/**
 * Parses a tiktoken vocabulary: one line "base64(token bytes) SPACE rank" per token, "\n" after each (optional after the last). The ranks
 * are 0 .. lines - 1, each once; no two tokens have the same bytes; every single byte is a token. `path` is for messages only.
 * Throws E_CONFIG naming the line.
 */
export function parseTiktokenModel(bytes: Uint8Array, path: string): RankTable {
  return runAtOnce(tiktokenModelSteps(bytes, path));
}

/** Lines between two pauses. */
const STEP = 1024;

/** parseTiktokenModel in steps: the released file has 163,584 lines. */
export function* tiktokenModelSteps(bytes: Uint8Array, path: string): Steps<RankTable> {
  const lines = countLines(bytes);
  if (lines === 0 || lines > MAX_BASE_TOKENS) {
    throw new StageError("E_CONFIG", `${path} has ${lines} lines; a vocabulary has 1 to ${MAX_BASE_TOKENS}`);
  }
  const table = new RankTable(lines);
  yield;
  let scratch = new Uint8Array(1024);
  let start = 0;
  for (let line = 1; line <= lines; line++) {
    const newline = bytes.indexOf(NEWLINE, start);
    const end = newline < 0 ? bytes.length : newline;
    const space = bytes.indexOf(SPACE, start);
    if (end - start > scratch.length) scratch = new Uint8Array(end - start);
    const length = space < 0 || space >= end ? -1 : decodeBase64(bytes, start, space, scratch);
    const rank = length <= 0 ? -1 : parseRank(bytes, space + 1, end);
    if (rank < 0) {
      throw new StageError("E_CONFIG", `${path} line ${line} is not "base64 SPACE rank"`, {
        details: { line },
      });
    }
    const refused = table.add(scratch.subarray(0, length), rank);
    if (refused !== null)
      throw new StageError("E_CONFIG", `${path} line ${line}: ${refused}`, { details: { line } });
    start = end + 1;
    if (line % STEP === 0) yield;
  }
  for (let byte = 0; byte < 256; byte++) {
    if (table.lookup(Uint8Array.of(byte), 0, 1) < 0) {
      throw new StageError(
        "E_CONFIG",
        `${path} has no token for the single byte ${byte}, so not every text could be encoded`,
      );
    }
  }
  return table;
}

function countLines(bytes: Uint8Array): number {
  let lines = 0;
  for (let i = 0; i < bytes.length; i++) if (bytes[i] === NEWLINE) lines += 1;
  return bytes.length > 0 && bytes[bytes.length - 1] !== NEWLINE ? lines + 1 : lines;
}

/** Decodes canonical base64 (padded, unused bits zero) into `into`; the number of bytes, or -1. */
function decodeBase64(bytes: Uint8Array, start: number, end: number, into: Uint8Array): number {
  if ((end - start) % 4 !== 0) return -1;
  let digitsEnd = end;
  while (digitsEnd > start && digitsEnd > end - 2 && bytes[digitsEnd - 1] === PADDING) digitsEnd -= 1;
  let length = 0;
  let bits = 0;
  let held = 0;
  for (let i = start; i < digitsEnd; i++) {
    const value = DIGITS[bytes[i]!]!;
    if (value === 255) return -1;
    bits = (bits << 6) | value;
    held += 6;
    if (held >= 8) {
      held -= 8;
      into[length++] = bits >> held;
      bits &= (1 << held) - 1;
    }
  }
  return bits === 0 ? length : -1;
}

/** Parses a decimal without sign or leading zeros; -1 when it is none. Seven digits are enough for any rank allowed. */
function parseRank(bytes: Uint8Array, start: number, end: number): number {
  const digits = end - start;
  if (digits < 1 || digits > 7 || (digits > 1 && bytes[start] === 0x30)) return -1;
  let rank = 0;
  for (let i = start; i < end; i++) {
    const digit = bytes[i]! - 0x30;
    if (digit < 0 || digit > 9) return -1;
    rank = rank * 10 + digit;
  }
  return rank;
}
