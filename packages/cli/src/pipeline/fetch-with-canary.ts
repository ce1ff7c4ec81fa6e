import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { canary, expectationsOf } from "@k3/bench";
import { readConfig } from "@k3/checkpoint";
import { type FetchOptions, type FetchResult, fetchSnapshot } from "@k3/fetch";
import { readSnapshot, StageError } from "@k3/stage";

/** Layers that the canary needs beside the model-level tensors. */
const CANARY_LAYERS = 2;
const INDEX_FILE = "model.safetensors.index.json";

/**
 * Fetches a snapshot in three goes: everything that is not weights; the shards of the first two layers, the embedding
 * and the head, which then must give the known tokens; and only then the rest. A wrong revision, a mirror with other
 * bytes or a broken build shows after 24 GB and not after 1.56 TB. Where nothing is known of a checkpoint, or its index
 * does not tell where the layers are, it is one go.
 */
export async function fetchWithCanary(
  options: FetchOptions & { memory: number | "auto" },
): Promise<FetchResult> {
  const { memory, ...fetching } = options;
  const { dir, signal, onEvent } = fetching;
  const small = await fetchSnapshot({ ...fetching, exclude: ["*.safetensors"] });
  const shards = await canaryShards(dir);
  if (shards === undefined) return added(await fetchSnapshot(fetching), [small]);
  const first = await fetchSnapshot({ ...fetching, include: ["*.json", "*.model", ...shards] });
  const { ok, checks } = await canary({ modelDir: dir, memory, layers: CANARY_LAYERS, signal, onEvent });
  if (!ok) {
    const wrong = checks.find((check) => !check.ok)!;
    throw new StageError(
      "E_DATA",
      `the canary is dead: ${wrong.what}: expected ${wrong.expected}, found ${wrong.found}`,
      {
        hint: "the download, the revision or the build is wrong; the rest was not downloaded",
        details: { checks },
      },
    );
  }
  onEvent?.({
    type: "log",
    level: "info",
    stage: "fetch",
    message: `the first ${CANARY_LAYERS} layers give the known tokens; fetching the rest`,
  });
  return added(await fetchSnapshot(fetching), [small, first]);
}

/** The result of the last call with the bytes and seconds of all. */
function added(last: FetchResult, earlier: readonly FetchResult[]): FetchResult {
  const sum = (pick: (result: FetchResult) => number) =>
    earlier.reduce((total, result) => total + pick(result), pick(last));
  const downloaded = sum((result) => result.downloaded_bytes);
  return {
    ...last,
    downloaded_bytes: downloaded,
    resumed_bytes: Math.max(0, last.bytes - downloaded),
    seconds: sum((result) => result.seconds),
  };
}

/** The shards with the first layers and the model-level tensors, by the checkpoint's own index. */
async function canaryShards(dir: string): Promise<string[] | undefined> {
  const { sha256 } = await readConfig(dir);
  const expected = await expectationsOf(dir, sha256);
  if (!expected?.generations.some(({ layers }) => layers !== null && layers <= CANARY_LAYERS))
    return undefined;
  let map: unknown;
  try {
    map = (JSON.parse(await readFile(join(dir, INDEX_FILE), "utf8")) as { weight_map?: unknown }).weight_map;
  } catch {
    return undefined;
  }
  if (typeof map !== "object" || map === null) return undefined;
  const known = new Set((await readSnapshot(dir))?.files.map((file) => file.path));
  const shards = new Set<string>();
  for (const [name, shard] of Object.entries(map)) {
    if (!name.startsWith("language_model.")) continue;
    const layer = /\.layers\.(\d+)\./.exec(name)?.[1];
    if (layer === undefined || Number(layer) < CANARY_LAYERS) shards.add(String(shard));
  }
  // A name that the snapshot does not list would be a pattern of somebody else's making.
  return [...shards].every((shard) => known.has(shard)) ? [...shards] : undefined;
}
