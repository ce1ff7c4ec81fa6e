import type { FaultCollector } from "./fault-list.ts";
import { EXPERTS_INFIX, LAYERS_PREFIX } from "./inventory.ts";
import type { TensorMap } from "./located.ts";
import type { Inventory, InventoryTensor } from "./types.ts";

/** Expert tensors of a layer missing beyond this many are reported in one fault. */
const MOST_EXPERTS_NAMED = 12;

/** Reports every tensor of the first `layers` layers, and of the model level, that no shard holds. */
export function reportMissing(
  map: TensorMap,
  inventory: Inventory,
  layers: number,
  faults: FaultCollector,
): void {
  const homes = new Homes(map, layers);
  const gone = (spec: InventoryTensor) => !map.dense.has(spec.name) && !map.faulty.has(spec.name);
  const ofLayer = new Map<number | null, InventoryTensor[]>();
  for (const spec of inventory.dense) ofLayer.set(spec.layer, [...(ofLayer.get(spec.layer) ?? []), spec]);
  for (let layer = 0; layer < layers; layer++) {
    const specs = ofLayer.get(layer) ?? [];
    const missing = specs.filter(gone);
    const experts = missingExperts(map, inventory, layer);
    const all = experts.total + specs.length;
    if (all === missing.length + experts.missing) {
      faults.add({
        path: homes.of(layer),
        kind: "missing",
        tensor: `${LAYERS_PREFIX}${layer}.*`,
        expected: `the ${all} tensors of layer ${layer}`,
        found: "none of them",
      });
      continue;
    }
    for (const spec of missing) reportOne(spec, homes.of(layer), faults);
    reportExperts(experts, layer, homes.of(layer), faults);
  }
  for (const spec of [inventory.embed, ...(ofLayer.get(null) ?? [])].filter(gone)) {
    reportOne(spec, homes.of(null), faults);
  }
}

function reportOne(spec: InventoryTensor, path: string, faults: FaultCollector): void {
  faults.add({
    path,
    kind: "missing",
    tensor: spec.name,
    expected: `BF16 or F32 [${spec.shape.join(", ")}]`,
    found: "no such tensor in any shard",
  });
}

interface MissingExperts {
  total: number;
  missing: number;
  /** Names of the first few. */
  names: string[];
}

function missingExperts(map: TensorMap, inventory: Inventory, layer: number): MissingExperts {
  const row = inventory.experts.layers.indexOf(layer);
  // Without a single expert the format is unknown; the released one is what to look for.
  const parts =
    map.experts?.format === "mxfp4" || !map.experts ? inventory.experts.mxfp4 : inventory.experts.plain;
  const result: MissingExperts = { total: 0, missing: 0, names: [] };
  if (row < 0) return result;
  const { experts } = inventory.experts;
  result.total = experts * parts.length;
  for (let i = 0; i < result.total; i++) {
    if (map.experts && map.experts.offsets[row * result.total + i] !== -1) continue;
    result.missing++;
    if (result.names.length > MOST_EXPERTS_NAMED) continue;
    const expert = Math.floor(i / parts.length);
    result.names.push(`${LAYERS_PREFIX}${layer}${EXPERTS_INFIX}${expert}.${parts[i % parts.length]!.suffix}`);
  }
  return result;
}

function reportExperts(
  { missing, total, names }: MissingExperts,
  layer: number,
  path: string,
  faults: FaultCollector,
): void {
  if (missing > MOST_EXPERTS_NAMED) {
    faults.add({
      path,
      kind: "missing",
      tensor: names[0]!,
      expected: `the ${total} expert tensors of layer ${layer}`,
      found: `${missing} of them in no shard, this one first`,
    });
  } else {
    for (const tensor of names) {
      faults.add({
        path,
        kind: "missing",
        tensor,
        expected: "the tensor",
        found: "no such tensor in any shard",
      });
    }
  }
}

/**
 * Which file to name for a missing tensor: the one that has other tensors of its layer, else the one that the released
 * naming gives it (layer L in shard L + 1, the model level behind the layers), else all of them.
 */
class Homes {
  readonly #held = new Map<number | null, string>();
  readonly #layers: number;
  readonly #of: string | undefined;

  constructor(map: TensorMap, layers: number) {
    for (const { layer, shard } of map.dense.values()) {
      if (!this.#held.has(layer)) this.#held.set(layer, map.shards[shard]!.file);
    }
    this.#layers = layers;
    const counts = new Set(
      map.shards.map(({ file }) => /^model-\d{5}-of-(\d{6})\.safetensors$/.exec(file)?.[1]),
    );
    const [count] = counts;
    // One layer a shard and three behind them, as released.
    if (counts.size === 1 && count !== undefined && Number(count) === layers + 3) this.#of = count;
  }

  of(layer: number | null): string {
    const held = this.#held.get(layer);
    if (held !== undefined) return held;
    if (this.#of === undefined) return "*.safetensors";
    return `model-${String((layer ?? this.#layers) + 1).padStart(5, "0")}-of-${this.#of}.safetensors`;
  }
}
