/**
 * Every dtype of the safetensors format with its bits per element (safetensors 0.6, `Dtype::bitsize`): an unknown one
 * is refused, because without a size its span cannot be checked.
 */
export const DTYPES: readonly (readonly [name: string, bits: number])[] = [
  ["BOOL", 8],
  ["F4", 4],
  ["F6_E2M3", 6],
  ["F6_E3M2", 6],
  ["U8", 8],
  ["I8", 8],
  ["F8_E5M2", 8],
  ["F8_E4M3", 8],
  ["F8_E5M2FNUZ", 8],
  ["F8_E4M3FNUZ", 8],
  ["F8_E8M0", 8],
  ["I16", 16],
  ["U16", 16],
  ["F16", 16],
  ["BF16", 16],
  ["I32", 32],
  ["U32", 32],
  ["F32", 32],
  ["C64", 64],
  ["F64", 64],
  ["I64", 64],
  ["U64", 64],
];

/** The index that stands for a dtype we do not know. */
export const UNKNOWN_DTYPE = 255;

const ENCODED = DTYPES.map(([name]) => Buffer.from(name, "latin1"));

/** Index in DTYPES of the name at bytes[start, end), or UNKNOWN_DTYPE. */
export function dtypeAt(bytes: Uint8Array, start: number, end: number): number {
  next: for (let i = 0; i < ENCODED.length; i++) {
    const name = ENCODED[i]!;
    if (name.length !== end - start) continue;
    for (let k = 0; k < name.length; k++) if (bytes[start + k] !== name[k]) continue next;
    return i;
  }
  return UNKNOWN_DTYPE;
}

export const dtypeIndex = (name: string): number => DTYPES.findIndex(([known]) => known === name);
