import { open, readdir } from "node:fs/promises";
import { join } from "node:path";

/** Weights by name, widened to float64; what the reference pass reads. */
export interface Weights {
  has(name: string): boolean;
  /** Row-major values. Throws an Error that names a tensor that is not there or has a dtype it cannot widen. */
  tensor(name: string): Float64Array;
}

/** A tensor as a safetensors file holds it. */
export interface RawTensor {
  dtype: string;
  shape: readonly number[];
  bytes: Uint8Array;
}

/** OCP Microscaling E2M1: the magnitudes that the low three bits of a nibble stand for; bit 3 is the sign. */
export const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6] as const;

/** 32 consecutive elements of a row share one E8M0 scale, 2^(code - 127); 255 is NaN. */
export const MXFP4_GROUP_SIZE = 32;

/**
 * MXFP4 as K3 packs it: packed [rows, columns / 2], the low nibble is the even column; scales [rows, columns / 32].
 * Every value is exact.
 */
export function decodeMxfp4(packed: Uint8Array, scales: Uint8Array): Float64Array {
  const values = new Float64Array(packed.length * 2);
  const bytesPerGroup = MXFP4_GROUP_SIZE / 2;
  for (let group = 0; group < scales.length; group++) {
    const scale = e8m0(scales[group]!);
    for (let i = group * bytesPerGroup; i < (group + 1) * bytesPerGroup; i++) {
      values[2 * i] = e2m1(packed[i]! & 15) * scale;
      values[2 * i + 1] = e2m1(packed[i]! >> 4) * scale;
    }
  }
  return values;
}

const e2m1 = (nibble: number): number => (nibble & 8 ? -E2M1[nibble & 7]! : E2M1[nibble & 7]!);

/** 2^(code - 127), exact by repeated doubling; V8's pow is not promised to be. */
export function e8m0(code: number): number {
  if (code === 255) return Number.NaN;
  let value = 1;
  for (let k = 127; k < code; k++) value *= 2;
  for (let k = 127; k > code; k--) value /= 2;
  return value;
}

/** BF16 or F32 bytes (little-endian) to float64, exactly. */
export function widen(dtype: string, bytes: Uint8Array, name: string): Float64Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (dtype === "F32") {
    return Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }
  if (dtype === "BF16") {
    const words = new Uint32Array(bytes.length / 2);
    for (let i = 0; i < words.length; i++) words[i] = view.getUint16(2 * i, true) << 16;
    return Float64Array.from(new Float32Array(words.buffer));
  }
  throw new Error(`${name}: the reference pass cannot read dtype ${dtype}`);
}

/** Weights over raw tensors in memory; each is widened once, when first asked for. */
export class RawWeights implements Weights {
  readonly #raw: (name: string) => RawTensor | undefined;
  readonly #known = new Map<string, Float64Array>();

  constructor(raw: (name: string) => RawTensor | undefined) {
    this.#raw = raw;
  }

  has(name: string): boolean {
    return this.#known.has(name) || this.#raw(name) !== undefined;
  }

  tensor(name: string): Float64Array {
    const known = this.#known.get(name);
    if (known !== undefined) return known;
    const raw = this.#raw(name);
    const packed = raw === undefined ? this.#raw(`${name}_packed`) : undefined;
    const scale = raw === undefined ? this.#raw(`${name}_scale`) : undefined;
    let values: Float64Array;
    if (raw !== undefined) values = widen(raw.dtype, raw.bytes, name);
    else if (packed && scale) values = decodeMxfp4(packed.bytes, scale.bytes);
    else throw new Error(`${name}: there is no such tensor`);
    this.#known.set(name, values);
    return values;
  }
}

/**
 * Reads every tensor of the `*.safetensors` of a directory into memory. A plain reader on purpose, so that the
 * reference pass shares no code with what it is compared with; it trusts the files and is for small models only.
 */
export async function readWeights(dir: string): Promise<RawWeights> {
  const tensors = new Map<string, RawTensor>();
  const shards = (await readdir(dir)).filter((name) => name.endsWith(".safetensors")).sort();
  for (const shard of shards) {
    for (const [name, tensor] of await readShard(join(dir, shard))) tensors.set(name, tensor);
  }
  return new RawWeights((name) => tensors.get(name));
}

/** The tensors of one safetensors file, in the order of its header. */
export async function readShard(path: string): Promise<Map<string, RawTensor>> {
  const handle = await open(path, "r");
  try {
    const bytes = await handle.readFile();
    const start = 8 + Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.toString("utf8", 8, start)) as Record<
      string,
      { dtype: string; shape: number[]; data_offsets: [number, number] }
    >;
    return new Map(
      Object.entries(header)
        .filter(([name]) => name !== "__metadata__")
        .map(
          ([
            name,
            {
              dtype,
              shape,
              data_offsets: [from, to],
            },
          ]) => [name, { dtype, shape, bytes: bytes.subarray(start + from, start + to) }],
        ),
    );
  } finally {
    await handle.close();
  }
}
