/** Where and why a text is not the JSON that a header may be. */
export class HeaderSyntaxError extends Error {
  readonly at: number;
  readonly expected: string;

  constructor(at: number, expected: string) {
    super(`expected ${expected} at byte ${at}`);
    this.at = at;
    this.expected = expected;
  }
}

/** Nesting that no header has; deeper values are refused so that hostile input cannot grow anything. */
const MAX_DEPTH = 32;

/**
 * A cursor over the bytes of a JSON text, which creates no objects: strings are byte ranges, numbers are checked for
 * being whole, non-negative and safe. RFC 8259 grammar, strictly. The bytes must be valid UTF-8, and are changed when
 * a string has escapes (it is decoded where it stands, which is never longer).
 */
export class JsonCursor {
  readonly bytes: Uint8Array;
  at = 0;
  /** Byte range of the last string, without its quotes and with its escapes decoded. */
  start = 0;
  end = 0;
  /** The last number when it is a whole one from 0 to 2^53 - 1, else -1; its text is bytes[start, end). */
  value = -1;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }

  fail(expected: string): never {
    throw new HeaderSyntaxError(this.at, expected);
  }

  /** The next byte that is not white space, without consuming it; -1 at the end. */
  peek(): number {
    const { bytes } = this;
    for (;;) {
      const c = bytes[this.at];
      if (c === undefined) return -1;
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return c;
      this.at++;
    }
  }

  take(c: number): void {
    if (this.peek() !== c) this.fail(`"${String.fromCharCode(c)}"`);
    this.at++;
  }

  /** Consumes the comma between two members, or the closing byte of the object or array: true when there is more. */
  more(close: number): boolean {
    const c = this.peek();
    if (c !== 0x2c && c !== close) this.fail(`"," or "${String.fromCharCode(close)}"`);
    this.at++;
    return c === 0x2c;
  }

  /** Consumes the closing byte if it is next: the object or array has no members. */
  closes(close: number): boolean {
    if (this.peek() !== close) return false;
    this.at++;
    return true;
  }

  string(): void {
    this.take(0x22);
    const { bytes } = this;
    this.start = this.at;
    for (let at = this.start; ; at++) {
      const c = bytes[at];
      if (c === 0x22) {
        this.end = at;
        this.at = at + 1;
        return;
      }
      if (c === 0x5c) {
        this.#unescape(at);
        return;
      }
      if (c === undefined || c < 0x20) {
        this.at = at;
        this.fail("the end of a string");
      }
    }
  }

  /** A number of any kind; `value` tells whether it is one that can be a size. */
  number(): void {
    this.peek();
    const { bytes } = this;
    const start = this.at;
    const negative = bytes[this.at] === 0x2d;
    if (negative) this.at++;
    const whole = this.at;
    let value = 0;
    for (let c = bytes[this.at]; c !== undefined && c >= 0x30 && c <= 0x39; c = bytes[++this.at]) {
      // Stops growing above 2^53, so nothing is lost to rounding and nothing wraps.
      if (value <= Number.MAX_SAFE_INTEGER) value = value * 10 + (c - 0x30);
    }
    if (this.at === whole || (bytes[whole] === 0x30 && this.at > whole + 1)) {
      this.at = start;
      this.fail("a number");
    }
    const integerEnd = this.at;
    if (bytes[this.at] === 0x2e) {
      this.at++;
      this.#digits();
    }
    if (bytes[this.at] === 0x65 || bytes[this.at] === 0x45) {
      this.at++;
      if (bytes[this.at] === 0x2b || bytes[this.at] === 0x2d) this.at++;
      this.#digits();
    }
    const plain = !negative && this.at === integerEnd && value <= Number.MAX_SAFE_INTEGER;
    this.value = plain ? value : -1;
    this.start = start;
    this.end = this.at;
  }

  /** Consumes any value. */
  skip(depth = 0): void {
    const c = this.peek();
    if (c === 0x22) this.string();
    else if (c === 0x7b || c === 0x5b) {
      if (depth >= MAX_DEPTH) this.fail(`at most ${MAX_DEPTH} levels of nesting`);
      this.at++;
      const close = c + 2;
      if (this.closes(close)) return;
      do {
        if (c === 0x7b) {
          this.string();
          this.take(0x3a);
        }
        this.skip(depth + 1);
      } while (this.more(close));
    } else if (c === 0x74) this.#word("true");
    else if (c === 0x66) this.#word("false");
    else if (c === 0x6e) this.#word("null");
    else this.number();
  }

  /** Text of a byte range for a message: at most 200 bytes of it. */
  text(start: number, end: number): string {
    const most = Math.min(end, start + 200, this.bytes.length);
    const text = Buffer.from(this.bytes.buffer, this.bytes.byteOffset + start, most - start).toString("utf8");
    return most < Math.min(end, this.bytes.length) ? `${text}...` : text;
  }

  #word(word: string): void {
    for (let i = 0; i < word.length; i++) {
      if (this.bytes[this.at + i] !== word.charCodeAt(i)) this.fail("a value");
    }
    this.at += word.length;
  }

  #digits(): void {
    const from = this.at;
    for (let c = this.bytes[this.at]; c !== undefined && c >= 0x30 && c <= 0x39; c = this.bytes[++this.at]);
    if (this.at === from) this.fail("a digit");
  }

  /** Decodes a string in place from its first backslash on, and goes behind its closing quote. */
  #unescape(from: number): void {
    const { bytes } = this;
    let write = from;
    let at = from;
    for (;;) {
      const c = bytes[at];
      if (c === 0x22) {
        this.end = write;
        this.at = at + 1;
        // What lies between the decoded text and here is never looked at again.
        return;
      }
      this.at = at;
      if (c === undefined || c < 0x20) this.fail("the end of a string");
      if (c !== 0x5c) {
        bytes[write++] = c;
        at++;
        continue;
      }
      const kind = bytes[at + 1];
      const simple = kind === undefined ? -1 : ESCAPES.indexOf(String.fromCharCode(kind));
      if (simple >= 0) {
        bytes[write++] = ESCAPED.charCodeAt(simple);
        at += 2;
        continue;
      }
      if (kind !== 0x75) this.fail("an escape that JSON has");
      let code = this.#hex4(at + 2);
      at += 6;
      if (code >= 0xd800 && code < 0xdc00 && bytes[at] === 0x5c && bytes[at + 1] === 0x75) {
        const low = this.#hex4(at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
          at += 6;
        }
      }
      if (code >= 0xd800 && code < 0xe000) this.fail("no half of a surrogate pair");
      write = putUtf8(bytes, write, code);
    }
  }

  #hex4(at: number): number {
    let code = 0;
    for (let i = at; i < at + 4; i++) {
      const digit = HEX.indexOf(String.fromCharCode(this.bytes[i] ?? 0).toLowerCase());
      if (digit < 0) this.fail("four hexadecimal digits");
      code = code * 16 + digit;
    }
    return code;
  }
}

const HEX = "0123456789abcdef";
const ESCAPES = `"\\/bfnrt`;
const ESCAPED = `"\\/\b\f\n\r\t`;

function putUtf8(bytes: Uint8Array, at: number, code: number): number {
  let to = at;
  if (code < 0x80) bytes[to++] = code;
  else {
    if (code < 0x800) bytes[to++] = 0xc0 | (code >> 6);
    else {
      if (code < 0x10000) bytes[to++] = 0xe0 | (code >> 12);
      else {
        bytes[to++] = 0xf0 | (code >> 18);
        bytes[to++] = 0x80 | ((code >> 12) & 63);
      }
      bytes[to++] = 0x80 | ((code >> 6) & 63);
    }
    bytes[to++] = 0x80 | (code & 63);
  }
  return to;
}
