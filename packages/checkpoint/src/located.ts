import type { Steps } from "@k3/stage";
import { DTYPES, dtypeIndex, UNKNOWN_DTYPE } from "./dtypes.ts";
import { type ExpertName, matchExpert } from "./expert-name.ts";
import type { FaultCollector } from "./fault-list.ts";
import type { HeaderTable } from "./header-table.ts";
import { MXFP4_GROUP, OPAQUE_PREFIXES } from "./inventory.ts";
import type {
  DenseDtype,
  ExpertTable,
  Inventory,
  InventoryTensor,
  K3Config,
  LocatedTensor,
  Shard,
} from "./types.ts";

const U8 = dtypeIndex("U8");
const BF16 = dtypeIndex("BF16");
const F32 = dtypeIndex("F32");
const STEP = 64;
const A_LOG = ".A_log";
/** How much longer than the heads a padded A_log may be. */
const MOST_A_LOG_PADDING = 4096;

/** Where the tensors of an inventory are: filled shard by shard, complaining of what does not belong. */
export class TensorMap {
  readonly shards: Shard[] = [];
  readonly dense = new Map<string, LocatedTensor>();
  /** Seen but at fault (reported): not to be reported as missing. */
  readonly faulty = new Set<string>();
  readonly opaque = { tensors: 0, bytes: 0 };
  experts: ExpertTable | undefined;
  readonly #inventory: Inventory;
  readonly #config: K3Config;
  readonly #specs: Map<string, InventoryTensor>;
  readonly #seen = new Map<string, number>();
  /** Row of the expert tables by layer; -1 for a layer without routed experts. */
  readonly #rows: Int32Array;
  readonly #name: ExpertName = { layer: 0, expert: 0, packed: false, part: 0 };

  constructor(config: K3Config, inventory: Inventory) {
    this.#config = config;
    this.#inventory = inventory;
    this.#specs = new Map([...inventory.dense, inventory.embed].map((spec) => [spec.name, spec]));
    this.#rows = new Int32Array(config.layers).fill(-1);
    for (const [row, layer] of inventory.experts.layers.entries()) this.#rows[layer] = row;
  }

  /** Places the entries of a shard's header, in steps of 64. */
  *add(shard: Shard, table: HeaderTable, faults: FaultCollector): Steps<void> {
    const index = this.shards.push(shard) - 1;
    for (let i = 0; i < table.count; i++) {
      if (matchExpert(table.bytes, table.nameStart[i]!, table.nameEnd[i]!, this.#name)) {
        this.#addExpert(index, table, i, faults);
      } else {
        this.#addNamed(index, table, i, faults);
      }
      if (i % STEP === 0) yield;
    }
  }

  /** The decay vectors that were located, with the number of heads that each must have. */
  aLogs(): { tensor: LocatedTensor; heads: number }[] {
    return [...this.dense.values()]
      .filter(({ name }) => name.endsWith(A_LOG))
      .map((tensor) => ({ tensor, heads: this.#config.kda.heads }));
  }

  #addNamed(index: number, table: HeaderTable, i: number, faults: FaultCollector): void {
    const name = table.name(i);
    const path = this.shards[index]!.file;
    const other = this.#seen.get(name);
    if (other !== undefined) {
      this.#duplicate(name, other, index, faults);
      return;
    }
    this.#seen.set(name, index);
    if (OPAQUE_PREFIXES.some((prefix) => name.startsWith(prefix))) {
      this.opaque.tensors++;
      if (table.begin[i]! >= 0) this.opaque.bytes += table.end[i]! - table.begin[i]!;
      return;
    }
    const spec = this.#specs.get(name);
    if (!spec) {
      this.#extra(name, path, table, i, faults);
      return;
    }
    const dtype = table.dtype[i]!;
    if (dtype === UNKNOWN_DTYPE || table.begin[i]! < 0) {
      this.faulty.add(name);
      return;
    }
    const shape = table.shape(i);
    if (!this.#shapeFits(spec, shape)) {
      this.faulty.add(name);
      const longer = spec.name.endsWith(A_LOG) ? " or a little longer" : "";
      faults.add({
        path,
        kind: "wrong-shape",
        tensor: name,
        expected: `[${spec.shape.join(", ")}]${longer}`,
        found: `[${shape.join(", ")}]`,
      });
    }
    if (dtype !== BF16 && dtype !== F32) {
      this.faulty.add(name);
      faults.add({
        path,
        kind: "wrong-dtype",
        tensor: name,
        expected: "BF16 or F32",
        found: DTYPES[dtype]![0],
      });
    }
    if (this.faulty.has(name)) return;
    this.dense.set(name, {
      name,
      layer: spec.layer,
      shape,
      dtype: DTYPES[dtype]![0] as DenseDtype,
      shard: index,
      offset: this.shards[index]!.dataStart + table.begin[i]!,
      bytes: table.end[i]! - table.begin[i]!,
    });
  }

  #shapeFits(spec: InventoryTensor, shape: number[]): boolean {
    if (shape.length !== spec.shape.length) return false;
    if (spec.name.endsWith(A_LOG)) {
      const [heads, length] = [spec.shape[0]!, shape[0]!];
      return length >= heads && length <= heads + MOST_A_LOG_PADDING;
    }
    return shape.every((n, axis) => n === spec.shape[axis]);
  }

  #addExpert(index: number, table: HeaderTable, i: number, faults: FaultCollector): void {
    const { layer, expert, packed, part } = this.#name;
    const path = this.shards[index]!.file;
    const row = this.#rows[layer] ?? -1;
    if (row < 0 || expert >= this.#config.experts) {
      this.#extra(table.name(i), path, table, i, faults);
      return;
    }
    const dtype = table.dtype[i]!;
    const experts = this.#expertTable(packed, dtype, faults);
    const fault = (kind: "wrong-shape" | "wrong-dtype" | "mixed-experts", expected: string, found: string) =>
      faults.add({ path, kind, tensor: table.name(i), expected, found });
    if (packed !== (experts.format === "mxfp4")) {
      fault("mixed-experts", `${experts.format} like the experts before`, packed ? "MXFP4" : "plain weights");
      return;
    }
    const slot = (row * this.#config.experts + expert) * experts.parts + part;
    if (experts.offsets[slot] !== -1) {
      this.#duplicate(table.name(i), experts.shards[slot]!, index, faults);
      return;
    }
    experts.offsets[slot] = this.shards[index]!.dataStart + Math.max(0, table.begin[i]!);
    experts.shards[slot] = index;
    if (dtype === UNKNOWN_DTYPE || table.begin[i]! < 0) return;
    const wanted = packed ? U8 : experts.format === "F32" ? F32 : BF16;
    if (dtype !== wanted) {
      fault(
        packed || (dtype !== BF16 && dtype !== F32) ? "wrong-dtype" : "mixed-experts",
        DTYPES[wanted]![0],
        DTYPES[dtype]![0],
      );
    }
    const [rows, columns] = (packed ? this.#inventory.experts.mxfp4 : this.#inventory.experts.plain)[part]!
      .shape;
    const at = table.dimsStart[i]!;
    if (table.dimsStart[i + 1]! - at !== 2 || table.dims[at] !== rows || table.dims[at + 1] !== columns) {
      fault("wrong-shape", `[${rows}, ${columns}]`, `[${table.shape(i).join(", ")}]`);
    }
  }

  /** The table, made when the first expert tensor tells its format. */
  #expertTable(packed: boolean, dtype: number, faults: FaultCollector): ExpertTable {
    if (this.experts) return this.experts;
    const { layers, experts, mxfp4, plain } = this.#inventory.experts;
    const format = packed ? "mxfp4" : dtype === F32 ? "F32" : "BF16";
    const parts = packed ? mxfp4 : plain;
    const width = packed ? 1 : format === "F32" ? 4 : 2;
    const count = layers.length * experts * parts.length;
    this.experts = {
      format,
      parts: parts.length,
      layers,
      experts,
      offsets: new Float64Array(count).fill(-1),
      shards: new Uint16Array(count),
      partBytes: parts.map(({ shape: [rows, columns] }) => rows * columns * width),
    };
    if (packed) this.#checkPacking(faults);
    return this.experts;
  }

  #checkPacking(faults: FaultCollector): void {
    const config = { path: "config.json", kind: "config" as const };
    for (const [field, width] of [
      ["routed_expert_hidden_size", this.#config.routedExpertHiddenSize],
      ["moe_intermediate_size", this.#config.moeIntermediateSize],
    ] as const) {
      if (width % MXFP4_GROUP === 0) continue;
      faults.add({
        ...config,
        expected: `${field} to be a multiple of ${MXFP4_GROUP}, because the experts are packed as MXFP4`,
        found: String(width),
      });
    }
    if (this.#config.quantization === null) {
      faults.add({
        ...config,
        expected: "a quantization_config, because the experts are packed",
        found: "none",
      });
    }
  }

  #duplicate(tensor: string, first: number, second: number, faults: FaultCollector): void {
    faults.add({
      path: this.shards[second]!.file,
      kind: "duplicate",
      tensor,
      expected: "each tensor once",
      found: `it in ${this.shards[first]!.file} and in ${this.shards[second]!.file}`,
      hint: "one of the two files does not belong to this checkpoint: remove it",
    });
  }

  #extra(tensor: string, path: string, table: HeaderTable, i: number, faults: FaultCollector): void {
    const dtype = DTYPES[table.dtype[i]!]?.[0] ?? "a faulty tensor";
    faults.add({
      path,
      kind: "extra",
      tensor,
      expected: "only tensors that config.json implies",
      found: `${dtype} [${table.shape(i).join(", ")}]`,
    });
  }
}
