import { E2M1, e8m0, MXFP4_GROUP_SIZE, type RawTensor } from "../reference/weights.ts";

const floatWord = new Float32Array(1);
const integerWord = new Uint32Array(floatWord.buffer);

/** The nearest BF16 (ties to even) of a finite number, as its 16 bits; through F32, as training code stores it. */
export function bf16Bits(value: number): number {
  floatWord[0] = value;
  const bits = integerWord[0]!;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

export function bf16Tensor(shape: readonly number[], value: (i: number) => number): RawTensor {
  const bytes = Buffer.alloc(2 * count(shape));
  for (let i = 0; 2 * i < bytes.length; i++) bytes.writeUInt16LE(bf16Bits(value(i)), 2 * i);
  return { dtype: "BF16", shape, bytes };
}

export function f32Tensor(shape: readonly number[], value: (i: number) => number): RawTensor {
  const bytes = Buffer.alloc(4 * count(shape));
  for (let i = 0; 4 * i < bytes.length; i++) bytes.writeFloatLE(value(i), 4 * i);
  return { dtype: "F32", shape, bytes };
}

/**
 * An MXFP4 matrix: the largest magnitude of each group of 32 columns sets the scale so that it lies in [4, 8), and
 * what is above 6 is cut to 6; each element becomes the nearest of the eight magnitudes, the smaller at a tie.
 */
export function mxfp4Tensors(
  rows: number,
  columns: number,
  value: () => number,
): { packed: RawTensor; scale: RawTensor } {
  const packed = Buffer.alloc((rows * columns) / 2);
  const scale = Buffer.alloc((rows * columns) / MXFP4_GROUP_SIZE);
  for (let group = 0; group < scale.length; group++) {
    const values = Array.from({ length: MXFP4_GROUP_SIZE }, value);
    const largest = Math.max(...values.map(Math.abs));
    let code = 127;
    while (largest / e8m0(code) >= 8) code++;
    while (largest > 0 && largest / e8m0(code) < 4) code--;
    scale[group] = code;
    values.forEach((element, i) => {
      const nibble = nearestE2m1(Math.abs(element) / e8m0(code)) | (element < 0 ? 8 : 0);
      packed[(group * MXFP4_GROUP_SIZE + i) >> 1]! |= i % 2 === 0 ? nibble : nibble << 4;
    });
  }
  return {
    packed: { dtype: "U8", shape: [rows, columns / 2], bytes: packed },
    scale: { dtype: "U8", shape: [rows, columns / MXFP4_GROUP_SIZE], bytes: scale },
  };
}

function nearestE2m1(magnitude: number): number {
  let best = 0;
  for (let code = 1; code < E2M1.length; code++) {
    if (Math.abs(E2M1[code]! - magnitude) < Math.abs(E2M1[best]! - magnitude)) best = code;
  }
  return best;
}

const count = (shape: readonly number[]): number => shape.reduce((product, n) => product * n, 1);

const ELEMENT_BYTES: Record<string, number> = { F32: 4, BF16: 2, U8: 1 };

/**
 * A safetensors file in the order of the released shards: widest elements first, then by name, no `__metadata__`, no
 * gap, and a header padded with spaces to a multiple of 8 bytes.
 */
export function safetensorsFile(tensors: ReadonlyMap<string, RawTensor>): Buffer {
  const width = ({ dtype }: RawTensor) => ELEMENT_BYTES[dtype]!;
  const entries = [...tensors].sort(([a, x], [b, y]) => width(y) - width(x) || (a < b ? -1 : 1));
  let offset = 0;
  const header: Record<string, unknown> = {};
  for (const [name, { dtype, shape, bytes }] of entries) {
    header[name] = { dtype, shape, data_offsets: [offset, offset + bytes.length] };
    offset += bytes.length;
  }
  const text = Buffer.from(JSON.stringify(header));
  const padding = Buffer.alloc((8 - (text.length % 8)) % 8, " ");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length + padding.length));
  return Buffer.concat([length, text, padding, ...entries.map(([, { bytes }]) => bytes)]);
}
