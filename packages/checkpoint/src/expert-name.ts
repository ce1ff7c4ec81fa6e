import { EXPERTS_INFIX, LAYERS_PREFIX } from "./inventory.ts";

const PREFIX = Buffer.from(LAYERS_PREFIX, "latin1");
const INFIX = Buffer.from(EXPERTS_INFIX, "latin1");
const WEIGHT = Buffer.from(".weight", "latin1");
const PACKED = Buffer.from("_packed", "latin1");
const SCALE = Buffer.from("_scale", "latin1");

/** What the last expert name said; one object for half a million names. */
export interface ExpertName {
  layer: number;
  expert: number;
  packed: boolean;
  /** In the order of ExpertTable: 0 to 5 when packed, 0 to 2 when plain. */
  part: number;
}

/**
 * Reads `language_model.model.layers.{L}.block_sparse_moe.experts.{E}.w{1,2,3}.weight[_packed|_scale]` at
 * bytes[start, end) without making a string; false when the name is another. Numbers are decimal without leading zeros.
 */
export function matchExpert(bytes: Uint8Array, start: number, end: number, into: ExpertName): boolean {
  if (!matches(bytes, start, end, PREFIX)) return false;
  let at = start + PREFIX.length;
  let value = 0;
  const digits = (): boolean => {
    const from = at;
    value = 0;
    for (let c = bytes[at]!; at < end && at - from < 8 && c >= 0x30 && c <= 0x39; c = bytes[++at]!) {
      value = value * 10 + (c - 0x30);
    }
    return at > from && (bytes[from] !== 0x30 || at === from + 1);
  };
  if (!digits()) return false;
  into.layer = value;
  if (!matches(bytes, at, end, INFIX)) return false;
  at += INFIX.length;
  if (!digits()) return false;
  into.expert = value;
  if (end - at < 3 || bytes[at] !== 0x2e || bytes[at + 1] !== 0x77) return false;
  const w = bytes[at + 2]! - 0x31;
  if (w < 0 || w > 2) return false;
  at += 3;
  if (!matches(bytes, at, end, WEIGHT)) return false;
  at += WEIGHT.length;
  into.packed = at < end;
  if (at === end) into.part = w;
  else if (end - at === PACKED.length && matches(bytes, at, end, PACKED)) into.part = 2 * w;
  else if (end - at === SCALE.length && matches(bytes, at, end, SCALE)) into.part = 2 * w + 1;
  else return false;
  return true;
}

function matches(bytes: Uint8Array, at: number, end: number, text: Uint8Array): boolean {
  if (end - at < text.length) return false;
  for (let i = 0; i < text.length; i++) if (bytes[at + i] !== text[i]) return false;
  return true;
}
