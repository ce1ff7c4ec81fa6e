import { runAtOnce, StageError, type Steps } from "@k3/stage";

/** How large a block of the trunk is meant to be, in bytes of decoded weights. */
export const BLOCK_BYTES = 1 << 20;
/** No block may be larger, whatever a tensor's row takes: readers size their buffers by this. */
export const MAX_BLOCK_BYTES = 1 << 26;
/** Segments start at multiples of this inside a decoded block: a cache line, and the widest vector. */
export const SEGMENT_ALIGN = 64;

/** Blocks and the table start at multiples of this in the data file: fit for O_DIRECT on any disk, 4Kn included. */
export const FILE_ALIGN = 4096;
export const alignUp = (n: number): number => Math.ceil(n / FILE_ALIGN) * FILE_ALIGN;

export type TensorDtype = "BF16" | "F32";

/** A tensor of the trunk, as the layout sees it. */
export interface TrunkTensor {
  name: string;
  dtype: TensorDtype;
  shape: number[];
  /** Zero-based layer, or null for the model-level tensors. */
  layer: number | null;
}

/**
 * Runs of whole rows of one tensor inside blocks, structure of arrays. Segment s holds rows
 * `firstRow[s] .. firstRow[s] + rows[s] - 1` of tensor `tensor[s]`, at `byteOffset[s]` of its decoded block, `bytes[s]` long.
 */
export interface Segments {
  tensor: Uint32Array;
  firstRow: Uint32Array;
  rows: Uint32Array;
  byteOffset: Uint32Array;
  bytes: Uint32Array;
}

/** Which rows of which tensors each block holds. The segments of block b are `segmentStart[b] .. segmentStart[b + 1] - 1`. */
export interface BlockLayout {
  blocks: number;
  /** Bytes of each decoded block: the end of its last segment. Alignment gaps between segments are zeros. */
  rawBytes: Uint32Array;
  segmentStart: Uint32Array;
  segments: Segments;
}

/** One segment, spelled out. */
export interface Segment {
  tensor: number;
  firstRow: number;
  rows: number;
  byteOffset: number;
  bytes: number;
}

export const dtypeBytes = (dtype: TensorDtype): number => (dtype === "BF16" ? 2 : 4);

/**
 * Rows and bytes per row of a tensor: a matrix has `shape[0]` rows, a convolution `[C, 1, 4]` has C rows of four, a
 * vector or scalar is one row. Throws E_CONFIG on an empty tensor, a row beyond 64 MiB, or 2^32 rows and more.
 */
export function tensorRows(tensor: Pick<TrunkTensor, "name" | "dtype" | "shape">): {
  rows: number;
  rowBytes: number;
} {
  const rows = tensor.shape.length >= 2 ? tensor.shape[0]! : 1;
  const columns = tensor.shape.slice(tensor.shape.length >= 2 ? 1 : 0).reduce((a, b) => a * b, 1);
  const rowBytes = columns * dtypeBytes(tensor.dtype);
  const sane = (n: number, limit: number) => Number.isSafeInteger(n) && n >= 1 && n <= limit;
  if (!tensor.shape.every((n) => sane(n, 0xffff_ffff)) || !sane(rowBytes, MAX_BLOCK_BYTES)) {
    throw new StageError("E_CONFIG", `${tensor.name}: the shape [${tensor.shape}] cannot be cut into blocks`);
  }
  return { rows, rowBytes };
}

/**
 * Cuts tensors, given in the order in which a forward pass needs them, into blocks of about `blockBytes`. Pure: the
 * same for whoever packs a trunk and for whoever reads the checkpoint as it is.
 *
 * - A tensor larger than a quarter of a block is cut into blocks of consecutive whole rows, at least one, of nearly
 *   equal size (multiples of 8 or 4 rows where that costs little, so that kernels see whole tiles).
 * - The smaller tensors of one layer share blocks, those of one dtype in their order; a shared block stands where the
 *   first of its tensors stood, so none comes later than it is needed. No block spans layers.
 *
 * Throws E_CONFIG when a tensor cannot be cut, or when a layer's tensors are not together.
 */
export function layoutBlocks(tensors: readonly TrunkTensor[], options: LayoutOptions = {}): BlockLayout {
  return runAtOnce(layoutSteps(tensors, options));
}

export interface LayoutOptions {
  blockBytes?: number;
}

/** layoutBlocks in steps of a layer: the released trunk has 110,000 blocks. */
export function* layoutSteps(
  tensors: readonly TrunkTensor[],
  { blockBytes = BLOCK_BYTES }: LayoutOptions = {},
): Steps<BlockLayout> {
  if (!Number.isSafeInteger(blockBytes) || blockBytes < 4096 || blockBytes > MAX_BLOCK_BYTES) {
    throw new StageError(
      "E_USAGE",
      `a block of ${blockBytes} bytes is not between 4096 and ${MAX_BLOCK_BYTES}`,
    );
  }
  const out = new LayoutBuilder();
  const seen = new Set<number | null>();
  for (let start = 0; start < tensors.length; ) {
    const { layer } = tensors[start]!;
    let end = start;
    while (end < tensors.length && tensors[end]!.layer === layer) end++;
    if (seen.has(layer)) {
      throw new StageError("E_CONFIG", `the tensors of layer ${layer ?? "(none)"} are not together`);
    }
    seen.add(layer);
    layoutLayer(tensors, start, end, blockBytes, out);
    start = end;
    yield;
  }
  return out.finish();
}

/** The segments of one block as objects, for code that is not hot. */
export function blockSegments(
  layout: Pick<BlockLayout, "segmentStart" | "segments">,
  block: number,
): Segment[] {
  const list: Segment[] = [];
  const { tensor, firstRow, rows, byteOffset, bytes } = layout.segments;
  for (let s = layout.segmentStart[block]!; s < layout.segmentStart[block + 1]!; s++) {
    list.push({
      tensor: tensor[s]!,
      firstRow: firstRow[s]!,
      rows: rows[s]!,
      byteOffset: byteOffset[s]!,
      bytes: bytes[s]!,
    });
  }
  return list;
}

function layoutLayer(
  tensors: readonly TrunkTensor[],
  start: number,
  end: number,
  blockBytes: number,
  out: LayoutBuilder,
): void {
  const geometry = tensors.slice(start, end).map(tensorRows);
  const isSmall = (t: number) => {
    const { rows, rowBytes } = geometry[t - start]!;
    return rows * rowBytes <= blockBytes / 4;
  };
  // Small tensors before this index are in a block already, by dtype: one F32 tensor would keep a shared block raw.
  const placed = { BF16: start, F32: start };
  for (let t = start; t < end; t++) {
    const { rows, rowBytes } = geometry[t - start]!;
    const { dtype } = tensors[t]!;
    if (!isSmall(t)) {
      const step = rowsPerBlock(rows, rowBytes, blockBytes);
      for (let row = 0; row < rows; row += step) {
        out.add(t, row, Math.min(step, rows - row), rowBytes);
        out.endBlock();
      }
    } else if (t >= placed[dtype]) {
      let next = t;
      for (; next < end; next++) {
        if (tensors[next]!.dtype !== dtype || !isSmall(next)) continue;
        const small = geometry[next - start]!;
        if (out.alignedEnd() + small.rows * small.rowBytes > blockBytes) break;
        out.add(next, 0, small.rows, small.rowBytes);
      }
      placed[dtype] = next;
      out.endBlock();
    }
  }
}

/** Rows of every block but the last of a tensor: as many as fit, evened out over the blocks that are needed anyway. */
function rowsPerBlock(rows: number, rowBytes: number, blockBytes: number): number {
  const tile = (n: number) => (n >= 32 ? 8 : n >= 8 ? 4 : 1);
  const fit = Math.max(1, Math.floor(blockBytes / rowBytes));
  const most = fit - (fit % tile(fit));
  const even = Math.ceil(rows / Math.ceil(rows / most));
  return Math.min(most, Math.ceil(even / tile(even)) * tile(even));
}

class LayoutBuilder {
  readonly #rawBytes = new Column();
  readonly #segmentStart = new Column();
  readonly #tensor = new Column();
  readonly #firstRow = new Column();
  readonly #rows = new Column();
  readonly #byteOffset = new Column();
  readonly #bytes = new Column();
  #end = 0;

  constructor() {
    this.#segmentStart.push(0);
  }

  alignedEnd(): number {
    return Math.ceil(this.#end / SEGMENT_ALIGN) * SEGMENT_ALIGN;
  }

  add(tensor: number, firstRow: number, rows: number, rowBytes: number): void {
    const byteOffset = this.alignedEnd();
    this.#tensor.push(tensor);
    this.#firstRow.push(firstRow);
    this.#rows.push(rows);
    this.#byteOffset.push(byteOffset);
    this.#bytes.push(rows * rowBytes);
    this.#end = byteOffset + rows * rowBytes;
  }

  endBlock(): void {
    this.#rawBytes.push(this.#end);
    this.#segmentStart.push(this.#tensor.length);
    this.#end = 0;
  }

  finish(): BlockLayout {
    return {
      blocks: this.#rawBytes.length,
      rawBytes: this.#rawBytes.values(),
      segmentStart: this.#segmentStart.values(),
      segments: {
        tensor: this.#tensor.values(),
        firstRow: this.#firstRow.values(),
        rows: this.#rows.values(),
        byteOffset: this.#byteOffset.values(),
        bytes: this.#bytes.values(),
      },
    };
  }
}

/** Numbers below 2^32 that grow in number. */
class Column {
  #values = new Uint32Array(1024);
  length = 0;

  push(value: number): void {
    if (this.length === this.#values.length) {
      const larger = new Uint32Array(this.length * 2);
      larger.set(this.#values);
      this.#values = larger;
    }
    this.#values[this.length++] = value;
  }

  values(): Uint32Array {
    return this.#values.slice(0, this.length);
  }
}
