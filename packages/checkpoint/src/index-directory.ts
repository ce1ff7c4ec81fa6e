import { lstat, open, readdir } from "node:fs/promises";
import { join } from "node:path";
import { Meter, runInSlices, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import { FaultCollector } from "./fault-list.ts";
import { inventory } from "./inventory.ts";
import { TensorMap } from "./located.ts";
import { reportMissing } from "./missing.ts";
import { ShardReader } from "./shard.ts";
import type { ExpertTable, Inventory, K3Config, LocatedTensor, StructureFault } from "./types.ts";

/** ExpertTable and the shard columns count shards in 16 bits; the release has 96. */
const MAX_SHARDS = 65_535;

export interface DirectoryIndex {
  inventory: Inventory;
  map: TensorMap;
  /** Layers that had to be there. */
  layers: number;
  faults: StructureFault[];
}

/**
 * One pass over the headers of all *.safetensors files of a directory: where every tensor of the first `layers` layers
 * and of the model level is, and every fault that stands in the way. Faults of files that hold none of these tensors
 * are left out when everything that is wanted was found elsewhere.
 */
export async function indexDirectory(
  dir: string,
  config: K3Config,
  layers: number,
  options: StageOptions & { stage: string },
): Promise<DirectoryIndex> {
  const collector = new FaultCollector();
  const implied = inventory(config);
  const map = new TensorMap(config, implied);
  const files = await shardFiles(dir);
  if (files.length === 0) {
    collector.add({
      path: "*.safetensors",
      kind: "no-shards",
      expected: "the weights, as *.safetensors files",
      found: "none in the directory",
    });
  }
  const meter = new Meter({
    stage: options.stage,
    phase: "reading headers",
    unit: "files",
    total: files.length,
    onEvent: options.onEvent,
  });
  const reader = new ShardReader();
  /** Files of whose tensors nothing, or not all, is known. */
  const unread = new Set<string>();
  for (const file of files) {
    throwIfAborted(options.signal);
    const { shard, faults } = await reader.read(dir, file, options.signal);
    for (const fault of faults) collector.add({ path: file, ...fault });
    if (!shard || faults.some(({ kind }) => kind === "header-syntax")) unread.add(file);
    if (shard) await runInSlices(map.add(shard, reader.table, collector), options.signal);
    meter.add(1);
  }
  meter.emit();
  await checkDecayTails(dir, map, layers, collector);
  const missing = new FaultCollector();
  if (files.length > 0) reportMissing(map, implied, layers, missing);
  const complete = missing.faults.length === 0;
  // That a file which could not be read lacks tensors is no fault of its own.
  for (const fault of missing.faults) if (!unread.has(fault.path)) collector.add(fault);
  const faults =
    layers < config.layers && complete ? collector.faults.filter(wantedOnly(map, layers)) : collector.faults;
  return { inventory: implied, map, layers, faults };
}

/** Names of the weight files, sorted. Hidden files (a macOS archive leaves `._model...`) are none of them. */
async function shardFiles(dir: string): Promise<string[]> {
  let names: string[];
  try {
    names = await readdir(dir);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") {
      const what = (await lstat(dir).catch(() => undefined)) ? "not a directory" : "no such directory";
      throw new StageError("E_DATA", `${dir}: ${what}`);
    }
    throw error;
  }
  const files = names.filter((name) => name.endsWith(".safetensors") && !name.startsWith(".")).sort();
  if (files.length > MAX_SHARDS) {
    throw new StageError(
      "E_CONFIG",
      `${dir}: ${files.length} *.safetensors files; at most ${MAX_SHARDS} are supported`,
    );
  }
  return files;
}

/** Keeps faults that concern the config, or files that hold a tensor of the wanted layers, unless of another layer. */
function wantedOnly(map: TensorMap, layers: number): (fault: StructureFault) => boolean {
  const wanted = (layer: number | null) => layer === null || layer < layers;
  const relevant = new Set<string>(["config.json"]);
  for (const { layer, shard } of map.dense.values()) if (wanted(layer)) relevant.add(map.shards[shard]!.file);
  for (const { offsets, shards } of map.experts ? [firstLayers(map.experts, layers)] : []) {
    for (const [slot, shard] of shards.entries())
      if (offsets[slot] !== -1) relevant.add(map.shards[shard]!.file);
  }
  return ({ path, tensor }) => {
    const layer = /^language_model\.model\.layers\.(\d+)\./.exec(tensor ?? "")?.[1];
    return relevant.has(path) && (layer === undefined || wanted(Number(layer)));
  };
}

/** The rows of the layers before `layers`: they come first, because layers are ascending. */
export function firstLayers(table: ExpertTable, layers: number): ExpertTable {
  const kept = table.layers.filter((layer) => layer < layers);
  if (kept.length === table.layers.length) return table;
  const slots = kept.length * table.experts * table.parts;
  return {
    ...table,
    layers: kept,
    offsets: table.offsets.slice(0, slots),
    shards: table.shards.slice(0, slots),
  };
}

/** A_log has one rate per head; when it is longer, what follows must be exactly zero, or its meaning is not the known one. */
async function checkDecayTails(
  dir: string,
  map: TensorMap,
  layers: number,
  faults: FaultCollector,
): Promise<void> {
  const padded = map
    .aLogs()
    .filter(({ tensor, heads }) => tensor.layer! < layers && tensor.shape[0]! > heads);
  for (const { tensor, heads } of padded) {
    const { file, size } = map.shards[tensor.shard]!;
    // A tensor that leaves its file is reported already.
    if (tensor.offset + tensor.bytes <= size)
      await checkDecayTail(join(dir, file), file, tensor, heads, faults);
  }
}

async function checkDecayTail(
  path: string,
  file: string,
  tensor: LocatedTensor,
  heads: number,
  faults: FaultCollector,
): Promise<void> {
  const width = tensor.bytes / tensor.shape[0]!;
  const tail = Buffer.alloc(tensor.bytes - heads * width, 0xff);
  const handle = await open(path, "r");
  try {
    await handle.read(tail, 0, tail.length, tensor.offset + heads * width);
  } finally {
    await handle.close();
  }
  const at = tail.findIndex((byte) => byte !== 0);
  if (at < 0) return;
  faults.add({
    path: file,
    kind: "a-log-tail",
    tensor: tensor.name,
    expected: `zeros after the rates of the ${heads} heads`,
    found: `another value at entry ${heads + Math.floor(at / width)}`,
  });
}
