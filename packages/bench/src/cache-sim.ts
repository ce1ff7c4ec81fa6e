import { readFile } from "node:fs/promises";
import { type ExpertTrace, simulateExpertCache } from "@k3/engine";
import { formatBytes, StageError } from "@k3/stage";
import { z } from "zod";

const traceSchema = z.object({
  /** Bytes of one expert of the traced model; traces of the release may lack it. */
  expert_bytes: z.int().positive().optional(),
  /** Layer -> consecutive token positions -> the experts chosen there. */
  layers: z.record(z.string().regex(/^\d+$/), z.array(z.array(z.int().min(0).max(65535)).min(1)).min(1)),
});

const POLICIES = ["lru", "k3", "belady"] as const;
const RELEASED_EXPERT_BYTES = 17_547_264;
const DEFAULT_SIZES = [4e9, 8e9, 16e9, 32e9];

export interface CacheSimulation {
  tokens: number;
  requested_bytes_per_token: number;
  rows: {
    bytes: number;
    policy: (typeof POLICIES)[number];
    avoided_bytes_per_token: number;
    avoided_share: number;
  }[];
  lines: string[];
}

/**
 * Replays a trace of chosen experts, token by token as in decoding, over cache sizes and policies: the least recently
 * used, ours, and Belady's bound (which sees the future). Throws E_DATA for a file that is no trace.
 */
export async function cacheSim(
  path: string,
  {
    sizes = DEFAULT_SIZES,
    expertBytes,
  }: { sizes?: readonly number[] | undefined; expertBytes: number | undefined },
): Promise<CacheSimulation> {
  const trace = await readTrace(path);
  const bytes = expertBytes ?? trace.expertBytes ?? RELEASED_EXPERT_BYTES;
  const tokens = trace.positions;
  const requests = trace.requests;
  const rows = sizes.flatMap((size) =>
    POLICIES.map((policy) => {
      const { hits } = simulateExpertCache(trace.trace, policy, Math.floor(size / bytes));
      return {
        bytes: size,
        policy,
        avoided_bytes_per_token: (hits * bytes) / tokens,
        avoided_share: hits / requests,
      };
    }),
  );
  return {
    tokens,
    requested_bytes_per_token: (requests * bytes) / tokens,
    rows,
    lines: [
      `${tokens} tokens, ${formatBytes((requests * bytes) / tokens)} of experts asked for by each`,
      ...rows.map(
        (row) =>
          `${formatBytes(row.bytes).padStart(8)}  ${row.policy.padEnd(6)}  ${formatBytes(row.avoided_bytes_per_token).padStart(8)} a token avoided, ${(100 * row.avoided_share).toFixed(1)} %`,
      ),
    ],
  };
}

async function readTrace(
  path: string,
): Promise<{ trace: ExpertTrace; positions: number; requests: number; expertBytes: number | undefined }> {
  const text = await readFile(path, "utf8");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new StageError("E_DATA", `${path}: not JSON: ${(error as Error).message}`);
  }
  const parsed = traceSchema.safeParse(value);
  if (!parsed.success) {
    throw new StageError("E_DATA", `${path}: not an expert trace: ${z.prettifyError(parsed.error)}`, {
      hint: "k3 run --trace-experts FILE writes one",
    });
  }
  const layers = Object.keys(parsed.data.layers)
    .map(Number)
    .sort((a, b) => a - b);
  const positions = Math.min(...layers.map((layer) => parsed.data.layers[layer]!.length));
  const trace = layers.map((layer) => parsed.data.layers[layer]!.slice(0, positions));
  const requests = trace.reduce(
    (sum, layer) => sum + layer.reduce((inner, chosen) => inner + chosen.length, 0),
    0,
  );
  return { trace, positions, requests, expertBytes: parsed.data.expert_bytes };
}
