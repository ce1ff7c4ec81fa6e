import { randomInt } from "node:crypto";

/** Differs per process, so that nobody can write a header whose names all fall into one slot. */
const HASH_SEED = randomInt(2 ** 32);

/** Entries that there is room for at first: a released shard has 5,400. */
const FIRST = 8192;

/** The entries of one safetensors header as columns, reused from file to file: no objects, no strings. */
export class HeaderTable {
  /** The header's JSON; names are ranges of it. */
  bytes: Uint8Array = new Uint8Array();
  count = 0;
  nameStart = new Uint32Array(FIRST);
  nameEnd = new Uint32Array(FIRST);
  /** Index in DTYPES; UNKNOWN_DTYPE when dtype, shape or span are at fault: such an entry has a place but no meaning. */
  dtype = new Uint8Array(FIRST);
  /** Offsets in the data, half open; -1 when they are at fault. */
  begin = new Float64Array(FIRST);
  end = new Float64Array(FIRST);
  /** dims[dimsStart[i], dimsStart[i + 1]) is the shape of entry i. */
  dimsStart = new Uint32Array(FIRST + 1);
  dims = new Float64Array(2 * FIRST);
  dimensions = 0;
  /** Entries whose place is not known: a gap then proves nothing. */
  lostSpans = 0;
  /** Open addressing over the names; holds entry index + 1, 0 for a free slot. */
  #slots = new Uint32Array(2 * FIRST);

  reset(bytes: Uint8Array): void {
    this.bytes = bytes;
    this.count = 0;
    this.dimensions = 0;
    this.lostSpans = 0;
    this.#slots.fill(0);
  }

  /** False when the name is already there: the entry is then not added. Its dimensions must have been added before. */
  add(
    nameStart: number,
    nameEnd: number,
    dtype: number,
    dimsFrom: number,
    begin: number,
    end: number,
  ): boolean {
    const slot = this.#find(nameStart, nameEnd);
    if (this.#slots[slot] !== 0) {
      this.dimensions = dimsFrom;
      return false;
    }
    if (this.count === this.begin.length) this.#grow();
    const i = this.count++;
    this.nameStart[i] = nameStart;
    this.nameEnd[i] = nameEnd;
    this.dtype[i] = dtype;
    this.begin[i] = begin;
    this.end[i] = end;
    this.dimsStart[i] = dimsFrom;
    this.dimsStart[i + 1] = this.dimensions;
    this.#slots[slot] = i + 1;
    if (this.count * 2 > this.#slots.length) this.#rehash();
    return true;
  }

  addDimension(value: number): void {
    if (this.dimensions === this.dims.length) this.dims = grown(this.dims, Float64Array);
    this.dims[this.dimensions++] = value;
  }

  name(i: number): string {
    return this.text(this.nameStart[i]!, this.nameEnd[i]!);
  }

  text(start: number, end: number): string {
    return Buffer.from(this.bytes.buffer, this.bytes.byteOffset + start, end - start).toString("utf8");
  }

  shape(i: number): number[] {
    return [...this.dims.subarray(this.dimsStart[i], this.dimsStart[i + 1])];
  }

  /** The slot of a name, or the free slot where it belongs. */
  #find(start: number, end: number): number {
    const { bytes } = this;
    const mask = this.#slots.length - 1;
    // FNV-1a, 32 bits, from a basis of our own.
    let hash = HASH_SEED;
    for (let i = start; i < end; i++) hash = Math.imul(hash ^ bytes[i]!, 0x01000193);
    let slot = (hash ^ (hash >>> 15)) & mask;
    for (let held = this.#slots[slot]!; held !== 0; held = this.#slots[slot]!) {
      if (this.#sameName(held - 1, start, end)) return slot;
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  #sameName(i: number, start: number, end: number): boolean {
    const from = this.nameStart[i]!;
    const length = end - start;
    if (this.nameEnd[i]! - from !== length) return false;
    for (let k = 0; k < length; k++) if (this.bytes[from + k] !== this.bytes[start + k]) return false;
    return true;
  }

  #rehash(): void {
    this.#slots = new Uint32Array(this.#slots.length * 2);
    for (let i = 0; i < this.count; i++)
      this.#slots[this.#find(this.nameStart[i]!, this.nameEnd[i]!)] = i + 1;
  }

  #grow(): void {
    this.nameStart = grown(this.nameStart, Uint32Array);
    this.nameEnd = grown(this.nameEnd, Uint32Array);
    this.dtype = grown(this.dtype, Uint8Array);
    this.begin = grown(this.begin, Float64Array);
    this.end = grown(this.end, Float64Array);
    this.dimsStart = grown(this.dimsStart, Uint32Array);
  }
}

function grown<T extends Uint8Array | Uint32Array | Float64Array>(
  old: T,
  type: new (length: number) => T,
): T {
  const next = new type(old.length * 2);
  next.set(old);
  return next;
}
