import { EXPERTS_INFIX, inventory, LAYERS_PREFIX } from "./inventory.ts";
import { RELEASED_VISION } from "./release.ts";
import type { K3Config } from "./types.ts";

/** A tensor as the released files hold it: offsets are relative to the end of the header. */
export interface ReleasedEntry {
  name: string;
  dtype: "F32" | "BF16" | "U8";
  shape: number[];
  begin: number;
  end: number;
}

export interface ReleasedShard {
  file: string;
  entries: ReleasedEntry[];
  /** 8 + the header, padded with spaces to a multiple of 8. */
  dataStart: number;
  size: number;
}

type Unplaced = Omit<ReleasedEntry, "begin" | "end">;

const WIDTH = { F32: 4, BF16: 2, U8: 1 } as const;

/** How many files the release of this config has: one a layer, then the model level, the projector and the tower. */
export const releasedShardCount = (config: K3Config): number => config.layers + RELEASED_VISION.length + 1;

/**
 * File `number` (from 1) of the release of a config: which tensors it holds, where, and its size to the byte. Layer L
 * is file L + 1; the embedding and the other model-level tensors follow, then the vision files. In each file F32
 * tensors come first, then BF16, then U8, each by name; no metadata (k3-model 2.4; it gives all 96 published sizes).
 */
export function releasedShard(config: K3Config, number: number): ReleasedShard {
  const count = releasedShardCount(config);
  if (!Number.isInteger(number) || number < 1 || number > count)
    throw new RangeError(`no file ${number} of ${count}`);
  const unplaced =
    number <= config.layers + 1
      ? textEntries(config, number <= config.layers ? number - 1 : null)
      : RELEASED_VISION[number - config.layers - 2]!.map(
          ([name, shape]): Unplaced => ({ name, dtype: "BF16", shape: [...shape] }),
        );
  unplaced.sort((a, b) => WIDTH[b.dtype] - WIDTH[a.dtype] || (a.name < b.name ? -1 : 1));
  let end = 0;
  const entries = unplaced.map((entry): ReleasedEntry => {
    const begin = end;
    end += entry.shape.reduce((product, n) => product * n, WIDTH[entry.dtype]);
    return { ...entry, begin, end };
  });
  const members = entries.map(
    ({ name, dtype, shape, begin, end: to }) =>
      `"${name}":{"dtype":"${dtype}","shape":[${shape}],"data_offsets":[${begin},${to}]}`,
  );
  const header = members.reduce((sum, { length }) => sum + length, members.length - 1 + 2);
  const dataStart = 8 + Math.ceil(header / 8) * 8;
  const file = `model-${String(number).padStart(5, "0")}-of-${String(count).padStart(6, "0")}.safetensors`;
  return { file, entries, dataStart, size: dataStart + end };
}

function textEntries(config: K3Config, layer: number | null): Unplaced[] {
  const { dense, embed, experts } = inventory(config);
  const entries = [...dense, embed]
    .filter((tensor) => tensor.layer === layer)
    .map(
      ({ name, shape, releasedDtype, releasedElements }): Unplaced => ({
        name,
        dtype: releasedDtype,
        shape: name.endsWith(".A_log") ? [releasedElements] : shape,
      }),
    );
  if (layer === null || !experts.layers.includes(layer)) return entries;
  for (let expert = 0; expert < experts.experts; expert++) {
    for (const { suffix, shape } of experts.mxfp4) {
      entries.push({
        name: `${LAYERS_PREFIX}${layer}${EXPERTS_INFIX}${expert}.${suffix}`,
        dtype: "U8",
        shape,
      });
    }
  }
  return entries;
}
