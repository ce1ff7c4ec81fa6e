import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { loadTokenizer } from "@k3/engine";
import { formatBytes, StageError } from "@k3/stage";
import type { BenchOptions } from "./bench.ts";
import type { BenchPoint } from "./bench-result.ts";
import { expectationsOf } from "./expectations.ts";
import type { ReadAccounts } from "./read-accounts.ts";
import type { MeasuredRun, RunRequest } from "./run-protocol.ts";

type Trunk = BenchPoint["trunk"];

/** One point of the matrix: what is asked of each of its runs, and what they should answer. */
export interface Point {
  request: RunRequest;
  trunk: Trunk;
  prompt: string;
  expected: readonly number[] | undefined;
  runs: MeasuredRun[];
}

/** The trunks to measure, each once, null for none. Throws E_DATA where there is no trunk. */
export async function trunksOf(given: BenchOptions["trunkDir"]): Promise<Trunk[]> {
  const dirs = typeof given === "string" ? [given] : (given ?? [null]);
  const trunks: Trunk[] = [];
  for (const dir of new Set(dirs)) {
    if (dir === null) trunks.push(null);
    else trunks.push({ dir, manifest_sha256: await sha256Of(join(dir, "trunk.json")).catch(noTrunk(dir)) });
  }
  return trunks.length > 0 ? trunks : [null];
}

const noTrunk = (dir: string) => (cause: unknown) => {
  throw new StageError("E_DATA", `${dir} holds no packed trunk: there is no trunk.json`, {
    hint: "k3 pack makes one; without --trunk the checkpoint's own weights are read",
    cause,
  });
};

/** Prompts x budgets x thread counts x trunks. Throws E_USAGE when no prompt is given or known. */
export async function matrix(
  options: BenchOptions,
  trunks: readonly Trunk[],
  accounts: ReadAccounts,
  configSha256: string,
): Promise<Point[]> {
  const { modelDir, generate = 8 } = options;
  const known =
    (await expectationsOf(modelDir, configSha256))?.generations.filter(({ layers }) => layers === null) ?? [];
  const prompts =
    options.prompts ?? known.flatMap(({ prompt }) => (prompt === null ? [] : [prompt])).slice(0, 1);
  if (prompts.length === 0) {
    throw new StageError("E_USAGE", "there is no prompt, and none is known for this checkpoint", {
      hint: "give --prompt TEXT",
    });
  }
  const tokenizer = await loadTokenizer(modelDir);
  const points: Point[] = [];
  for (const prompt of new Set(prompts)) {
    const promptIds = tokenizer.encode(prompt);
    if (promptIds.length === 0)
      throw new StageError("E_USAGE", "a prompt has no token: there is nothing to run");
    const expected = known.find(({ prompt_ids }) => prompt_ids.join() === promptIds.join())?.generated_ids;
    for (const memory of new Set<number | "auto">(options.memory ?? ["auto"]))
      for (const threads of new Set<number | undefined>(options.threads ?? [undefined]))
        for (const trunk of trunks) {
          const where = { modelDir, trunkDir: trunk?.dir };
          const request = { ...where, memory, threads, promptIds, prompt, generate, accounts };
          points.push({ request, trunk, prompt, expected, runs: [] });
        }
  }
  return points;
}

/** `400 MB, 2 threads, trunk DIR`: what a run is asked for, before it is known what it got. */
export function describeRequest({ memory, threads, trunkDir }: RunRequest): string {
  return [
    memory === "auto" ? "what memory is free" : formatBytes(memory),
    threads === undefined ? "all threads" : threads === 1 ? "1 thread" : `${threads} threads`,
    trunkDir === undefined ? "no trunk" : `trunk ${trunkDir}`,
  ].join(", ");
}

export async function sha256Of(path: string): Promise<string> {
  return createHash("sha256")
    .update(await readFile(path))
    .digest("hex");
}
