import { execFile } from "node:child_process";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { Model, type ModelOptions } from "../src/index.ts";

const execute = promisify(execFile);
const tools = resolve(import.meta.dirname, "../../../tools/reference");

/** Writes a random checkpoint with tools/reference/make_checkpoint.py. */
export async function makeCheckpoint(
  python: string,
  dir: string,
  { seed, shards = 4, set }: { seed: number; shards?: number; set: Record<string, number> },
): Promise<void> {
  const settings = Object.entries(set).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
  const script = join(tools, "make_checkpoint.py");
  await execute(python, [script, dir, "--seed", `${seed}`, "--shards", `${shards}`, ...settings]);
}

export interface NumpyRun {
  generated_ids: number[];
  smallest_margin: number | null;
  smallest_router_gap: number | null;
}

/** Continues ids with tools/reference/k3_reference.py. */
export async function numpyRun(
  python: string,
  dir: string,
  ids: readonly number[],
  generate: number,
  layers?: number,
): Promise<NumpyRun> {
  const args = [join(tools, "k3_reference.py"), dir, "--ids", ids.join(","), "--generate", `${generate}`];
  const { stdout } = await execute(python, [
    ...args,
    ...(layers === undefined ? [] : ["--layers", `${layers}`]),
  ]);
  return JSON.parse(stdout) as NumpyRun;
}

export interface Continuation {
  generated: number[];
  /** After the prompt. */
  logits: Float32Array;
  /** After the last token but one that was generated: everything before it went into them. */
  last: Float32Array;
}

/** Opens a model, runs a prompt, continues it greedily, closes the model. */
export async function continueWith(
  options: ModelOptions,
  ids: readonly number[],
  generate: number,
): Promise<Continuation> {
  const model = await Model.open({ memory: 8e9, threads: 2, contextTokens: 512, ...options });
  try {
    const session = model.session();
    await session.prefill(ids);
    const logits = session.logits!;
    const generated: number[] = [];
    for await (const { id } of session.generate({ maxTokens: generate })) generated.push(id);
    return { generated, logits, last: session.lastLogits! };
  } finally {
    await model.close();
  }
}

/** The largest difference over the largest magnitude. */
export function relativeError(actual: Float32Array, expected: readonly number[]): number {
  let difference = 0;
  let magnitude = 0;
  expected.forEach((value, i) => {
    difference = Math.max(difference, Math.abs(actual[i]! - value));
    magnitude = Math.max(magnitude, Math.abs(value));
  });
  return difference / magnitude;
}
