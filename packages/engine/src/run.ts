import { readFile } from "node:fs/promises";
import { endIdsOf, readConfig } from "@k3/checkpoint";
import { runInSlices, StageError, type StageOptions, throwIfAborted, writeFileAtomically } from "@k3/stage";
import { residentBytes } from "./memory.ts";
import { Model } from "./model.ts";
import type { PassStats } from "./pass.ts";
import { mustRunAll, type Resumption, RunState, resume } from "./run-state.ts";
import { traceDocument } from "./run-trace.ts";
import type { PassRecord, Session } from "./session.ts";
import {
  createSampler,
  createStopMatcher,
  loadTokenizer,
  type Sampler,
  type SamplerOptions,
  type Tokenizer,
  type TokenLogprob,
} from "./text/index.ts";
import { topLogprobsSteps } from "./text/sampling.ts";

export interface RunOptions extends StageOptions {
  modelDir: string;
  trunkDir?: string | undefined;
  /** Exactly one of these four; only `ids` needs no tokenizer files. None is allowed when `state` names a file. */
  prompt?: string | Uint8Array | undefined;
  promptFile?: string | undefined;
  ids?: readonly number[] | undefined;
  /** Tokens to generate at most, default 16; 0 only runs the prompt. */
  generate?: number | undefined;
  memory?: number | "auto" | undefined;
  threads?: number | undefined;
  layers?: number | undefined;
  chunk?: number | undefined;
  isa?: string | undefined;
  /** A file that counts the experts chosen, as for Model.open. */
  census?: string | undefined;
  sampling?: SamplerOptions | undefined;
  /** Texts that end the generation; they are not part of `text`. */
  stop?: readonly string[] | undefined;
  /** Go on after the model's end ids. */
  ignoreEos?: boolean | undefined;
  /** Report the K likeliest tokens of every step. */
  logprobs?: number | undefined;
  /**
   * A state file: read first when it exists, saved on the way and at the end, also when the run is interrupted (after
   * the pass under way). See `resume` for what a prompt means then: the same command goes on where it stopped.
   */
  state?: string | undefined;
  /** Write the logits of the last prompt position: little-endian float32, one per vocabulary entry. */
  dumpLogits?: string | undefined;
  /** Write the experts chosen in every layer for every position of this run, as JSON. */
  traceExperts?: string | undefined;
  /** Gets the text as it becomes certain. */
  onText?: ((text: string) => void) | undefined;
}

export interface RunStep extends Omit<PassStats, "wait_seconds"> {
  phase: "prefill" | "decode";
}

export interface RunResult {
  prompt_ids: number[];
  /** The model's end id included, when that ended it. */
  generated_ids: number[];
  /** Null when the run was started from ids. */
  text: string | null;
  stop_reason: "end" | "length" | "stop" | "interrupted";
  steps: RunStep[];
  memory: { budget_bytes: number; planned_bytes: number; peak_rss_bytes: number };
  trunk: { codec: string; stored_bytes: number; pinned_bytes: number };
  /** Tokens of earlier runs that the cache of experts was told about; null without a census. */
  census_tokens: number | null;
  /** Whether the state file holds all of this; false after a save that failed, which is a warning too. Null without a state. */
  state_saved: boolean | null;
  model: { layers: number; revision: string | null; config_sha256: string };
  /** Makes sampling repeatable. A string: it has 64 bits. */
  seed: string;
  /** With `logprobs`: per generated token its own and the likeliest ones. */
  logprobs?: { id: number; logprob: number; top: TokenLogprob[] }[];
}

/**
 * The run stage: continues a prompt. Prompt ids are checked against the config before any weight file is opened.
 *
 * An aborted signal ends it with `stop_reason: "interrupted"` and what was generated so far, unless nothing had begun.
 * Throws E_USAGE, E_CONFIG, E_DATA, E_MEMORY as Model.open does, and E_READ when a weight cannot be read; text given to
 * `onText` before stands.
 */
export async function run(options: RunOptions): Promise<RunResult> {
  const { modelDir, signal, onEvent } = options;
  const generate = options.generate ?? 16;
  if (!Number.isInteger(generate) || generate < 0) {
    throw new StageError("E_USAGE", `generate is ${generate}; it must be a whole number from 0`);
  }
  const sampler = createSampler(options.sampling);
  const state = options.state === undefined ? undefined : new RunState(options.state, { signal, onEvent });
  const stateIds = (await state?.ids()) ?? null;
  const { config } = await readConfig(modelDir);
  const { ids, tokenizer } = await promptIds(options, config.vocabSize, stateIds !== null);
  const resumption = resume(stateIds, ids);
  mustRunAll(resumption, [
    { name: "dumpLogits", given: options.dumpLogits !== undefined },
    { name: "logprobs", given: (options.logprobs ?? 0) > 0 },
    { name: "traceExperts", given: options.traceExperts !== undefined },
  ]);
  const endIds = options.ignoreEos ? [] : await endIdsOf(modelDir);
  const output = new TextOutput(tokenizer, options, new Set(endIds));

  const contextTokens = Math.max(1, (stateIds?.length ?? 0) + resumption.feed.length + generate);
  const { trunkDir, memory, threads, layers, chunk, isa, census } = options;
  const model = await Model.open({
    ...{ modelDir, trunkDir, memory, threads, layers, chunk, isa, census, contextTokens, signal, onEvent },
  });
  try {
    const session = model.session();
    await state?.load(session, model.plan, resumption);
    const records: PassRecord[] = [];
    const made = await produce({
      session,
      resumption,
      state,
      generate,
      sampler,
      output,
      endIds,
      options,
      records,
    });
    const state_saved = (await state?.finish(session)) ?? null;
    if (options.traceExperts !== undefined) {
      await writeFileAtomically(options.traceExperts, traceDocument(records, model));
    }
    const { plan, revision, configSha256: config_sha256 } = model;
    const { codec, storedBytes: stored_bytes } = model.trunk;
    return {
      prompt_ids: [...ids],
      generated_ids: made.generated,
      text: output.finish(),
      stop_reason: made.reason,
      steps: records.map(({ phase, stats: { wait_seconds: _, ...stats } }) => ({ phase, ...stats })),
      memory: {
        budget_bytes: plan.budgetBytes,
        planned_bytes: plan.plannedBytes,
        peak_rss_bytes: residentBytes().peak,
      },
      trunk: { codec, stored_bytes, pinned_bytes: plan.pinnedBytes },
      census_tokens: model.censusTokens,
      state_saved,
      model: { layers: model.layers, revision, config_sha256 },
      seed: sampler.seed.toString(),
      ...(made.logprobs ? { logprobs: made.logprobs } : {}),
    };
  } finally {
    await model.close();
  }
}

interface Production {
  session: Session;
  resumption: Resumption;
  state: RunState | undefined;
  generate: number;
  sampler: Sampler;
  output: TextOutput;
  endIds: readonly number[];
  options: RunOptions;
  records: PassRecord[];
}

interface Produced {
  generated: number[];
  reason: RunResult["stop_reason"];
  logprobs: RunResult["logprobs"];
}

async function produce(production: Production): Promise<Produced> {
  const { session, resumption, state, generate, sampler, output, endIds, options, records } = production;
  const { onEvent } = options;
  const trace = options.traceExperts !== undefined;
  const boundary = state?.betweenPasses();
  const signal = boundary?.signal ?? options.signal;
  const onPass = (record: PassRecord) => {
    records.push(record);
    boundary?.passed();
  };
  const generated: number[] = [];
  const logprobs: NonNullable<RunResult["logprobs"]> = [];
  const top = options.logprobs ?? 0;
  const produced = (reason: RunResult["stop_reason"]): Produced => ({
    ...{ generated, reason },
    logprobs: top > 0 ? logprobs : undefined,
  });
  throwIfAborted(options.signal);
  for (const id of resumption.done.slice(0, generate)) {
    generated.push(id);
    if (output.push(id)) return produced("stop");
    if (endIds.includes(id)) return produced("end");
  }
  sampler.skip(generated.length);
  if (resumption.done.length >= generate && resumption.done.length > 0) return produced("length");
  try {
    if (resumption.feed.length > 0 || (generated.length === 0 && !session.logits)) {
      await session.prefill(resumption.feed, { signal, onEvent, onPass, trace });
    }
    if (options.dumpLogits !== undefined) await dumpLogits(options.dumpLogits, session.logits!);
    const maxTokens = generate - generated.length;
    const steps = session.generate({ maxTokens, sampler, endIds, signal, onEvent, onPass, trace });
    for await (const { id, logprob, end } of steps) {
      generated.push(id);
      // The logits that it was chosen from: the session keeps them until the next pass.
      if (top > 0)
        logprobs.push({ id, logprob, top: await runInSlices(topLogprobsSteps(session.lastLogits!, top)) });
      if (output.push(id)) return produced("stop");
      if (end !== null) return produced(end);
      await state?.saveWhenDue(session);
      boundary?.passed();
    }
    return produced("length");
  } catch (error) {
    if (error instanceof StageError && error.code === "E_INTERRUPTED" && options.signal?.aborted)
      return produced("interrupted");
    throw error;
  }
}

/** Text as it becomes certain: whole characters, nothing that belongs to a stop text or an end id. */
class TextOutput {
  readonly #decoder: ReturnType<Tokenizer["decoder"]> | undefined;
  readonly #matcher: ReturnType<typeof createStopMatcher>;
  readonly #onText: ((text: string) => void) | undefined;
  readonly #endIds: ReadonlySet<number>;
  #text = "";
  #stopped = false;

  constructor(tokenizer: Tokenizer | undefined, options: RunOptions, endIds: ReadonlySet<number>) {
    const stop = options.stop ?? [];
    if (stop.length > 0 && !tokenizer) {
      throw new StageError("E_USAGE", "stop texts need a prompt of text: ids have no text to watch");
    }
    this.#decoder = tokenizer?.decoder();
    this.#matcher = createStopMatcher(stop);
    this.#onText = options.onText;
    this.#endIds = endIds;
  }

  /** True when a stop text is complete. */
  push(id: number): boolean {
    if (!this.#decoder || this.#endIds.has(id)) return false;
    return this.#pushText(this.#decoder.push(id));
  }

  finish(): string | null {
    if (!this.#decoder) return null;
    if (!this.#stopped && !this.#pushText(this.#decoder.end())) this.#emit(this.#matcher.end());
    return this.#text;
  }

  #pushText(text: string): boolean {
    const step = this.#matcher.push(text);
    this.#emit(step.text);
    this.#stopped = step.stopped !== null;
    return this.#stopped;
  }

  #emit(text: string): void {
    if (text === "") return;
    this.#text += text;
    this.#onText?.(text);
  }
}

async function promptIds(
  options: RunOptions,
  vocabSize: number,
  mayBeEmpty: boolean,
): Promise<{ ids: readonly number[]; tokenizer: Tokenizer | undefined }> {
  const { modelDir, prompt, promptFile, ids } = options;
  const given = [prompt, promptFile, ids].filter((value) => value !== undefined);
  if (given.length > 1) throw new StageError("E_USAGE", "give one of prompt, promptFile and ids");
  if (ids !== undefined || (given.length === 0 && mayBeEmpty)) {
    const list = ids ?? [];
    const wrong = list.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
    if (wrong !== undefined) {
      throw new StageError("E_USAGE", `token id ${wrong} is not in the vocabulary of ${vocabSize}`);
    }
    if (list.length === 0 && !mayBeEmpty) throw new StageError("E_USAGE", "the prompt is empty");
    return { ids: list, tokenizer: undefined };
  }
  if (given.length === 0) throw new StageError("E_USAGE", "there is no prompt");
  const text = prompt ?? (await readFile(promptFile!));
  const tokenizer = await loadTokenizer(modelDir);
  const encoded = tokenizer.encode(text);
  if (encoded.length === 0 && !mayBeEmpty) throw new StageError("E_USAGE", "the prompt is empty");
  if (tokenizer.vocabSize > vocabSize) {
    throw new StageError("E_CONFIG", `the tokenizer has ${tokenizer.vocabSize} ids, the model ${vocabSize}`);
  }
  return { ids: encoded, tokenizer };
}

async function dumpLogits(path: string, logits: Float32Array): Promise<void> {
  const bytes = Buffer.alloc(logits.length * 4);
  for (let i = 0; i < logits.length; i++) bytes.writeFloatLE(logits[i]!, i * 4);
  await writeFileAtomically(path, bytes);
}
