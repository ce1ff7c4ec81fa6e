import { StageError } from "@k3/stage";
import {
  alignUp,
  type BlockLayout,
  dtypeBytes,
  MAX_BLOCK_BYTES,
  SEGMENT_ALIGN,
  type Segments,
  tensorRows,
} from "./layout.ts";
import { BLOCK_RECORD_BYTES, SEGMENT_RECORD_BYTES, type TrunkManifest } from "./manifest.ts";

/** Where each block is in the data file and what it must be; one entry per block, in the order of a forward pass. */
export interface BlockTable extends BlockLayout {
  /** Byte offset in the data file, a multiple of 4096. */
  offset: Float64Array;
  storedBytes: Uint32Array;
  /** 0: stored as it is. 1: the bf16 codec. */
  codec: Uint8Array;
  /** CRC-32 (zlib) of the stored and of the decoded bytes. */
  crcStored: Uint32Array;
  crcRaw: Uint32Array;
}

/**
 * The block table of a data file: 32 bytes per block (offset u64, stored bytes u32, raw bytes u32, CRC of stored u32,
 * CRC of raw u32, number of segments u32, codec u8, three zero bytes), then 16 bytes per segment (tensor, first row,
 * rows, offset in the decoded block; u32 each); little-endian.
 */
export function encodeTable(table: BlockTable): Uint8Array {
  const segments = table.segments.tensor.length;
  const bytes = new Uint8Array(table.blocks * BLOCK_RECORD_BYTES + segments * SEGMENT_RECORD_BYTES);
  const view = new DataView(bytes.buffer);
  for (let b = 0; b < table.blocks; b++) {
    const at = b * BLOCK_RECORD_BYTES;
    view.setBigUint64(at, BigInt(table.offset[b]!), true);
    view.setUint32(at + 8, table.storedBytes[b]!, true);
    view.setUint32(at + 12, table.rawBytes[b]!, true);
    view.setUint32(at + 16, table.crcStored[b]!, true);
    view.setUint32(at + 20, table.crcRaw[b]!, true);
    view.setUint32(at + 24, table.segmentStart[b + 1]! - table.segmentStart[b]!, true);
    view.setUint8(at + 28, table.codec[b]!);
  }
  const { tensor, firstRow, rows, byteOffset } = table.segments;
  for (let s = 0; s < segments; s++) {
    const at = table.blocks * BLOCK_RECORD_BYTES + s * SEGMENT_RECORD_BYTES;
    view.setUint32(at, tensor[s]!, true);
    view.setUint32(at + 4, firstRow[s]!, true);
    view.setUint32(at + 8, rows[s]!, true);
    view.setUint32(at + 12, byteOffset[s]!, true);
  }
  return bytes;
}

/**
 * The reverse, for bytes that may be hostile: afterwards blocks follow each other without a gap from offset 0, every row
 * of every tensor is in exactly one segment, in order, segments lie inside their block, and codecs fit their tensors.
 * Throws E_DATA naming `where` and the block.
 */
export function decodeTable(manifest: TrunkManifest, bytes: Uint8Array, where: string): BlockTable {
  const { blocks, segments } = manifest.table;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const column = () => new Uint32Array(segments);
  const table: BlockTable = {
    blocks,
    offset: new Float64Array(blocks),
    storedBytes: new Uint32Array(blocks),
    rawBytes: new Uint32Array(blocks),
    codec: new Uint8Array(blocks),
    crcStored: new Uint32Array(blocks),
    crcRaw: new Uint32Array(blocks),
    segmentStart: new Uint32Array(blocks + 1),
    segments: { tensor: column(), firstRow: column(), rows: column(), byteOffset: column(), bytes: column() },
  };
  const check = new TableCheck(manifest, table, where);
  for (let b = 0; b < blocks; b++) {
    const at = b * BLOCK_RECORD_BYTES;
    table.offset[b] = Number(view.getBigUint64(at, true));
    table.storedBytes[b] = view.getUint32(at + 8, true);
    table.rawBytes[b] = view.getUint32(at + 12, true);
    table.crcStored[b] = view.getUint32(at + 16, true);
    table.crcRaw[b] = view.getUint32(at + 20, true);
    const last = table.segmentStart[b]! + view.getUint32(at + 24, true);
    table.codec[b] = view.getUint8(at + 28);
    if (last > segments) check.fail(b, "has more segments than there are");
    if (view.getUint32(at + 28, true) >>> 8 !== 0) check.fail(b, "has bits set that must be zero");
    table.segmentStart[b + 1] = last;
    for (let s = table.segmentStart[b]!; s < last; s++) {
      readSegment(view, blocks * BLOCK_RECORD_BYTES + s * SEGMENT_RECORD_BYTES, table.segments, s);
      check.segment(b, s);
    }
    check.block(b);
  }
  check.end();
  return table;
}

function readSegment(view: DataView, at: number, into: Segments, s: number): void {
  into.tensor[s] = view.getUint32(at, true);
  into.firstRow[s] = view.getUint32(at + 4, true);
  into.rows[s] = view.getUint32(at + 8, true);
  into.byteOffset[s] = view.getUint32(at + 12, true);
}

/** The rules of a table, followed block by block. */
class TableCheck {
  readonly #manifest: TrunkManifest;
  readonly #table: BlockTable;
  readonly #where: string;
  readonly #geometry: { rows: number; rowBytes: number }[];
  /** Next row of each tensor that no block has had yet. */
  readonly #nextRow: Float64Array;
  #offset = 0;
  #stored = 0;
  #raw = 0;

  constructor(manifest: TrunkManifest, table: BlockTable, where: string) {
    this.#manifest = manifest;
    this.#table = table;
    this.#where = where;
    try {
      this.#geometry = manifest.tensors.map(tensorRows);
    } catch (error) {
      throw new StageError("E_DATA", `${where}: ${(error as Error).message}`, { cause: error });
    }
    this.#nextRow = new Float64Array(manifest.tensors.length);
  }

  fail(block: number, what: string): never {
    throw new StageError("E_DATA", `${this.#where}: block ${block} of the table ${what}`, {
      hint: "pack the trunk again",
    });
  }

  segment(b: number, s: number): void {
    const { segments, segmentStart } = this.#table;
    const tensor = segments.tensor[s]!;
    const geometry = this.#geometry[tensor];
    if (!geometry) this.fail(b, `names tensor ${tensor}, which does not exist`);
    const rows = segments.rows[s]!;
    if (segments.firstRow[s]! !== this.#nextRow[tensor]!) this.fail(b, "does not continue its tensor");
    if (rows === 0 || this.#nextRow[tensor]! + rows > geometry.rows)
      this.fail(b, "has rows that its tensor has not");
    this.#nextRow[tensor]! += rows;
    const bytes = rows * geometry.rowBytes;
    if (bytes > MAX_BLOCK_BYTES) this.fail(b, "is too large");
    segments.bytes[s] = bytes;
    const first = s === segmentStart[b]!;
    const end = first ? 0 : segments.byteOffset[s - 1]! + segments.bytes[s - 1]!;
    if (segments.byteOffset[s]! !== Math.ceil(end / SEGMENT_ALIGN) * SEGMENT_ALIGN) {
      this.fail(b, "has a segment out of place");
    }
    const { tensors } = this.#manifest;
    if (!first && tensors[segments.tensor[s - 1]!]!.layer !== tensors[tensor]!.layer) {
      this.fail(b, "spans two layers");
    }
  }

  block(b: number): void {
    const { segments, segmentStart, storedBytes, rawBytes, codec, offset } = this.#table;
    const last = segmentStart[b + 1]! - 1;
    if (last < segmentStart[b]!) this.fail(b, "is empty");
    const end = segments.byteOffset[last]! + segments.bytes[last]!;
    if (rawBytes[b]! !== end || end > MAX_BLOCK_BYTES) this.fail(b, "has another size than its segments");
    if (offset[b]! !== this.#offset) this.fail(b, `is at ${offset[b]} where ${this.#offset} was due`);
    if (codec[b] === 0) {
      if (storedBytes[b] !== rawBytes[b]) this.fail(b, "is stored raw with another size");
    } else if (codec[b] === 1 && this.#manifest.codec === "bf16") {
      if (storedBytes[b]! === 0 || storedBytes[b]! >= rawBytes[b]!)
        this.fail(b, "is coded without being smaller");
      for (let s = segmentStart[b]!; s <= last; s++) {
        const dtype = this.#manifest.tensors[segments.tensor[s]!]!.dtype;
        if (dtypeBytes(dtype) !== 2) this.fail(b, "codes a tensor that is not BF16");
      }
    } else {
      this.fail(b, `has codec ${codec[b]}, which this trunk cannot have`);
    }
    this.#offset = alignUp(this.#offset + storedBytes[b]!);
    this.#stored += storedBytes[b]!;
    this.#raw += rawBytes[b]!;
  }

  end(): void {
    const { table, storedBytes, rawBytes, tensors } = this.#manifest;
    const fault = (what: string) =>
      new StageError("E_DATA", `${this.#where}: ${what}`, { hint: "pack the trunk again" });
    if (this.#table.segmentStart[table.blocks] !== table.segments)
      throw fault("segments that belong to no block");
    if (this.#offset !== table.offset) throw fault("the blocks do not end where the table begins");
    if (this.#stored !== storedBytes || this.#raw !== rawBytes)
      throw fault("the sums of the blocks differ from trunk.json");
    tensors.forEach((tensor, t) => {
      if (this.#nextRow[t] !== this.#geometry[t]!.rows) throw fault(`${tensor.name} is not complete`);
    });
  }
}
