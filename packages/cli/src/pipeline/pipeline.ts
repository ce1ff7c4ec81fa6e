import { mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { bench, plan } from "@k3/bench";
import { run } from "@k3/engine";
import { pack } from "@k3/pack";
import { lockFile, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import { verify } from "@k3/verify";
import { planSource } from "../plan-source.ts";
import { fetchWithCanary } from "./fetch-with-canary.ts";
import { type Served, serveMiniature } from "./miniature-source.ts";
import { placesOf } from "./places.ts";
import {
  carryOver,
  MINIATURE,
  type PipelineState,
  readState,
  STAGES,
  type StageName,
  writeState,
} from "./state.ts";

export interface PipelineOptions extends StageOptions {
  /** Undefined: the miniature, made here and served by a loopback Hub. */
  repo: string | undefined;
  revision: string;
  dir: string;
  memory: number | "auto";
  prompt: string;
  generate: number;
  /** Called before and after each stage; `result` is undefined before. */
  onStage: (name: StageName, result: Record<string, unknown> | undefined, fromEarlier: boolean) => void;
  /** Generated text, as it comes. */
  onText: (piece: string) => void;
}

/** What the `pipeline` command reports: the result of each stage, each in its own stage's form. */
export interface PipelineResult {
  stages: Record<StageName, Record<string, unknown>>;
  dir: string;
}

/**
 * plan, fetch, verify, pack, run, bench, in one directory. Stages that are finished are not done again; a stage that
 * was interrupted continues where it was, by its own journal. A directory whose files vanished is filled again.
 */
export async function pipeline(options: PipelineOptions): Promise<PipelineResult> {
  const { dir } = options;
  const { modelDir, trunkDir } = placesOf(dir);
  await mkdir(dir, { recursive: true });
  const lock = await lockFile(join(dir, "pipeline.lock"), "running the pipeline");
  let served: Served | undefined;
  try {
    const repo = options.repo ?? MINIATURE;
    const { revision, prompt, generate, memory } = options;
    let state = carryOver(await readState(dir), {
      format: "k3-pipeline",
      version: 1,
      repo,
      revision,
      prompt,
      generate,
      memory,
    });
    state = await dropVanished(dir, state);
    // Also before anything is finished: who looks at the directory should know what it is for.
    await writeState(dir, state);
    const works: Record<StageName, () => Promise<object>> = {
      plan: async () => {
        if (options.repo === undefined) served = await serveMiniature(dir, options);
        const source = await planSource(served ? join(dir, "source") : repo, options);
        return plan({ ...common(options), source, dir, memory, codec: "bf16" });
      },
      fetch: async () => {
        if (options.repo === undefined) served ??= await serveMiniature(dir, options);
        return fetchWithCanary({
          ...common(options),
          repo,
          revision: served?.revision ?? revision,
          dir: modelDir,
          endpoint: served?.endpoint,
          memory,
        });
      },
      verify: async () => {
        const result = await verify({ ...common(options), dir: modelDir, level: "hashes" });
        if (!result.ok) throw damaged(modelDir, result.faults);
        return result;
      },
      pack: () => pack({ ...common(options), modelDir, trunkDir, codec: "bf16" }),
      run: () =>
        run({
          ...common(options),
          modelDir,
          trunkDir,
          prompt,
          generate,
          memory,
          onText: options.onText,
        }),
      bench: () =>
        bench({
          ...common(options),
          modelDir,
          trunkDir,
          runs: 3,
          memory: memory === "auto" ? undefined : [memory],
          prompts: [prompt],
          generate,
          outDir: join(dir, "bench"),
        }),
    };
    for (const name of STAGES) {
      throwIfAborted(options.signal);
      const earlier = state.stages[name];
      options.onStage(name, undefined, earlier !== undefined);
      if (earlier === undefined) {
        const result = (await works[name]()) as Record<string, unknown>;
        if (result["stop_reason"] === "interrupted") throwIfAborted(options.signal);
        state.stages[name] = JSON.parse(JSON.stringify(result)) as Record<string, unknown>;
        await writeState(dir, state);
      }
      options.onStage(name, state.stages[name], earlier !== undefined);
    }
    return { stages: state.stages as PipelineResult["stages"], dir };
  } finally {
    await served?.close();
    await lock.release();
  }
}

const common = ({ signal, onEvent }: StageOptions): StageOptions => ({ signal, onEvent });

/** Finished stages whose files are gone, and all that build on them, are to be done again. */
async function dropVanished(dir: string, state: PipelineState): Promise<PipelineState> {
  const { modelDir, trunkDir } = placesOf(dir);
  const exists = async (path: string) => (await stat(path).catch(() => undefined)) !== undefined;
  const stages = { ...state.stages };
  const drop = (from: StageName) => {
    for (const name of STAGES.slice(STAGES.indexOf(from))) delete stages[name];
  };
  if (!(await exists(join(trunkDir, "trunk.json")))) drop("pack");
  if (!(await exists(join(modelDir, "config.json")))) drop("fetch");
  if (stages.bench && !(await exists(join(dir, "bench")))) drop("bench");
  return { ...state, stages };
}

function damaged(dir: string, faults: readonly { path: string; kind: string }[]): StageError {
  const first = faults[0]!;
  return new StageError(
    "E_DATA",
    `${dir}: ${faults.length} faults; the first: ${first.path}: ${first.kind}`,
    {
      hint: `k3 verify ${dir} lists them all; k3 fetch fetches what is missing or damaged`,
      details: { faults },
    },
  );
}
