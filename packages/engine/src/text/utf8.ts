/**
 * Length in bytes (1 to 4) of the well-formed UTF-8 character at `at`, or 0 when there is none before `end`.
 * Well-formed means table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
 */
function characterLength(bytes: Uint8Array, at: number, end: number): number {
  const lead = bytes[at]!;
  if (lead < 0x80) return 1;
  const length = expectedLength(lead);
  if (length === 0 || at + length > end || !secondByteFits(lead, bytes[at + 1]!)) return 0;
  for (let i = at + 2; i < at + length; i++) if (!isContinuation(bytes[i]!)) return 0;
  return length;
}

/**
 * How many bytes at the end of `bytes` (0 to 3) are the beginning of a character that more bytes could complete.
 * A streaming decoder keeps them back; everything before them decodes as it would in one piece.
 */
export function incompleteSuffix(bytes: Uint8Array): number {
  const end = bytes.length;
  for (let length = 1; length <= 3 && length <= end; length++) {
    const at = end - length;
    const lead = bytes[at]!;
    if (isContinuation(lead)) continue;
    if (expectedLength(lead) <= length) return 0;
    return length === 1 || secondByteFits(lead, bytes[at + 1]!) ? length : 0;
  }
  return 0;
}

/** Calls `valid` with each maximal run of well-formed UTF-8 and `other` with each byte that belongs to none, in order. */
export function splitByValidity(
  bytes: Uint8Array,
  valid: (run: Uint8Array) => void,
  other: (byte: number) => void,
): void {
  let start = 0;
  let at = 0;
  while (at < bytes.length) {
    const length = characterLength(bytes, at, bytes.length);
    if (length > 0) {
      at += length;
      continue;
    }
    if (at > start) valid(bytes.subarray(start, at));
    other(bytes[at]!);
    at += 1;
    start = at;
  }
  if (at > start) valid(bytes.subarray(start, at));
}

const DECODER = new TextDecoder("utf-8", { ignoreBOM: true });

/** Decodes UTF-8, U+FFFD for each maximal ill-formed part as in the WHATWG Encoding standard; a leading U+FEFF is kept. */
export function decodeUtf8(bytes: Uint8Array): string {
  return DECODER.decode(bytes);
}

function expectedLength(lead: number): number {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0;
}

function secondByteFits(lead: number, second: number): boolean {
  if (lead === 0xe0) return second >= 0xa0 && second <= 0xbf;
  if (lead === 0xed) return second >= 0x80 && second <= 0x9f;
  if (lead === 0xf0) return second >= 0x90 && second <= 0xbf;
  if (lead === 0xf4) return second >= 0x80 && second <= 0x8f;
  return isContinuation(second);
}

function isContinuation(byte: number): boolean {
  return (byte & 0xc0) === 0x80;
}
