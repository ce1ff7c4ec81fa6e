import { openCheckpoint, readConfig } from "@k3/checkpoint";
import { Model } from "@k3/engine";
import { StageError, type StageOptions } from "@k3/stage";
import { expectationsOf } from "./expectations.ts";

export interface CanaryCheck {
  what: string;
  expected: string;
  found: string;
  ok: boolean;
}

export interface CanaryResult {
  ok: boolean;
  /** Layers that were present and run. */
  layers: number;
  checks: CanaryCheck[];
}

export interface CanaryOptions extends StageOptions {
  modelDir: string;
  memory?: number | "auto";
  threads?: number;
  /** Run no more than so many layers, even where more are present. */
  layers?: number;
}

/**
 * Sings before the rest is paid for: runs as many layers as the directory holds and compares the tokens that are known
 * for so many layers, and the largest hidden value after each layer. For the release the published results are built
 * in; another checkpoint brings its own in `k3-expectations.json`. Throws E_CONFIG where nothing is known, E_DATA where
 * not even the shortest known run is present.
 */
export async function canary(options: CanaryOptions): Promise<CanaryResult> {
  const { modelDir, memory = "auto", threads, signal, onEvent } = options;
  const present = await layersPresent(modelDir, options.layers, signal);
  const expected = await expectationsOf(modelDir, present.configSha256);
  if (!expected) {
    throw new StageError("E_CONFIG", `${modelDir}: nothing is known that this checkpoint should answer`, {
      hint: "the canary knows the released Kimi K3 and checkpoints with a k3-expectations.json",
    });
  }
  const runnable = expected.generations.filter(({ layers }) => (layers ?? present.total) <= present.layers);
  if (runnable.length === 0) {
    throw new StageError(
      "E_DATA",
      `${modelDir}: the first layers, the embedding and the head must be there before the canary can run`,
      {
        hint: "k3 fetch REPO --dir DIR --first 'model-0000[12]-of-*' --first 'model-00094-of-*' takes them first",
      },
    );
  }
  const checks: CanaryCheck[] = [];
  for (const { prompt_ids, layers, generated_ids, source } of runnable) {
    const model = await Model.open({
      modelDir,
      memory,
      threads,
      layers: layers ?? undefined,
      signal,
      onEvent,
    });
    const found: number[] = [];
    try {
      const session = model.session();
      await session.prefill(prompt_ids, { signal, onEvent });
      const maxTokens = generated_ids.length;
      for await (const { id } of session.generate({ maxTokens, endIds: [], signal, onEvent })) found.push(id);
    } finally {
      await model.close();
    }
    checks.push({
      what: `tokens after ${prompt_ids.join(",")} with ${layers ?? "all"} layers (${source})`,
      expected: generated_ids.join(","),
      found: found.join(","),
      ok: found.join() === generated_ids.join(),
    });
  }
  if (expected.hidden) checks.push(...(await hiddenChecks(expected.hidden, present, options)));
  return { ok: checks.every(({ ok }) => ok), layers: present.layers, checks };
}

interface Present {
  layers: number;
  total: number;
  configSha256: string;
}

/** How many of the first layers can be run: a partial download holds the first N and the model's own end. */
async function layersPresent(
  modelDir: string,
  atMost: number | undefined,
  signal: AbortSignal | undefined,
): Promise<Present> {
  const opened = async (layers: number) => {
    try {
      return await openCheckpoint(modelDir, { signal, layers });
    } catch (error) {
      if (error instanceof StageError && error.code === "E_DATA") return undefined;
      throw error;
    }
  };
  const { config, sha256 } = await readConfig(modelDir);
  const total = config.layers;
  const most = Math.min(total, atMost ?? total);
  if (await opened(most)) return { layers: most, total, configSha256: sha256 };
  if (!(await opened(1))) {
    throw new StageError(
      "E_DATA",
      `${modelDir}: not even the first layer, the embedding and the head are there`,
      {
        hint: "k3 verify DIR --level sizes says what is missing",
      },
    );
  }
  let [low, high] = [1, most];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (await opened(middle)) low = middle;
    else high = middle;
  }
  return { layers: low, total, configSha256: sha256 };
}

type Hidden = NonNullable<NonNullable<Awaited<ReturnType<typeof expectationsOf>>>["hidden"]>;

async function hiddenChecks(
  hidden: Hidden,
  present: Present,
  options: CanaryOptions,
): Promise<CanaryCheck[]> {
  const { modelDir, memory = "auto", threads, signal, onEvent } = options;
  const known = hidden.max_abs.filter(([layer]) => layer < present.layers);
  if (known.length === 0) return [];
  const layers = Math.max(...known.map(([layer]) => layer)) + 1;
  const model = await Model.open({ modelDir, memory, threads, layers, signal, onEvent });
  const peaks = new Float32Array(layers);
  const onPass = ({ layerMax }: { layerMax?: Float32Array }) => {
    layerMax?.forEach((value, layer) => {
      peaks[layer] = Math.max(peaks[layer]!, value);
    });
  };
  try {
    await model.session().prefill(hidden.prompt_ids, { trace: true, onPass, signal, onEvent });
  } finally {
    await model.close();
  }
  return known.map(([layer, expected]) => {
    const found = peaks[layer]!;
    return {
      what: `largest hidden value after layer ${layer} (${hidden.source})`,
      expected: expected.toPrecision(7),
      found: found.toPrecision(7),
      ok: Math.abs(found - expected) <= hidden.tolerance * Math.abs(expected),
    };
  });
}
