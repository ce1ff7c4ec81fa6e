import { availableParallelism } from "node:os";
import { setImmediate } from "node:timers/promises";
import { type K3Config, openCheckpoint } from "@k3/checkpoint";
import {
  formatBytes,
  Meter,
  runInSlices,
  StageError,
  type StageOptions,
  throwIfAborted,
  toStageError,
} from "@k3/stage";
import { openTrunk } from "@k3/trunk";
import { CensusKeeper } from "./census-keeper.ts";
import { loadNative } from "./loader.ts";
import { availableMemory, residentBytes } from "./memory.ts";
import type { NativeAddon, NativeEngine, NativePass, NativeState, NativeStats } from "./native.ts";
import { type MemoryPlan, planSteps } from "./plan.ts";
import { Session } from "./session.ts";
import { buildTables } from "./tables.ts";

export interface ModelOptions extends StageOptions {
  /** A checkpoint in the released layout: config.json and its safetensors shards. */
  modelDir: string;
  /** A trunk packed from it by @k3/pack; without one the trunk's weights are read from the shards as they are. */
  trunkDir?: string | undefined;
  /** What the whole process may take, in bytes; "auto" (default) takes what is safely free. */
  memory?: number | "auto" | undefined;
  /** Threads that compute; all cores by default. */
  threads?: number | undefined;
  /** Run only the first layers, then the model's own final mix, norm and head. */
  layers?: number | undefined;
  /** The most prompt tokens that one pass takes, default 128; fewer when memory is short. The answer is the same. */
  chunk?: number | undefined;
  /** Positions that a session has room for, default 4096. */
  contextTokens?: number | undefined;
  /** Sessions and snapshots that may exist at the same time, default 1: each keeps the model's recurrent state. */
  sessions?: number | undefined;
  /** "scalar", "avx2", "avx512" or "neon" instead of the best there is; also by the environment variable K3_ISA. */
  isa?: string | undefined;
  /**
   * A file that counts how often experts are chosen, over all runs that name it: the cache prefers what was asked for
   * often. Made when it is missing; see `censusPath` for the usual place. Without one, and when not all layers run, only
   * this run counts.
   */
  census?: string | undefined;
  /** For experiments and tests; nothing here changes the answer. */
  tuning?: Tuning | undefined;
}

export interface Tuning {
  /** Size of the blocks that weights are read in when there is no packed trunk, default 1 MiB. */
  blockBytes?: number | undefined;
  /** Blocks in the ring of reads ahead, default 48 or what the budget allows. */
  ringBlocks?: number | undefined;
  /** Threads that read the trunk ahead, and the experts, default 8 each. */
  readers?: number | undefined;
  /** false: buffered reads even where O_DIRECT works. */
  direct?: boolean | undefined;
  /** "disk": always read ahead. "memory": workers always read for themselves. Default: as measured. */
  pace?: "disk" | "memory" | undefined;
  /** Experts that stay in memory, instead of the solved number. */
  expertsCached?: number | undefined;
}

/** What one pass over a chunk of tokens read and did. Bytes are payload bytes from the device, not cache hits. */
export interface PassStats {
  tokens: number;
  seconds: number;
  read: { trunk_bytes: number; head_bytes: number; expert_bytes: number };
  /** Distinct (layer, expert) pairs that the pass needed, those that were in memory, and those that were read. */
  experts: { requested: number; resident: number; read: number };
  /** Seconds that workers stood still for data, added over the workers. */
  wait_seconds: number;
}

export interface Pass extends NativePass {
  stats: PassStats;
}

/** Reads in flight of each kind: what it takes to keep a disk busy that answers within a millisecond. */
const READERS = 8;
const POLL_MS = 200;
const MOST_THREADS = 1024;
const MOST_CHUNK = 4096;

/** A model that is open: its plan, its native engine, and the sessions that run on it, one pass at a time. */
export class Model {
  readonly config: K3Config;
  /** How the memory budget is spent. */
  readonly plan: MemoryPlan;
  /** Layers that run. */
  readonly layers: number;
  readonly revision: string | null;
  readonly configSha256: string;
  /** How the trunk is stored ("none" as in the checkpoint), and the bytes of one pass of it with the head. */
  readonly trunk: { codec: string; storedBytes: number };
  /** The instruction set in use. */
  readonly isa: string;
  readonly threads: number;
  /** Tokens that the census of experts had counted when the model was opened; null without a census. */
  readonly censusTokens: number | null;
  readonly #census: CensusKeeper | undefined;
  readonly #engine: NativeEngine;
  readonly #sessions: number;
  readonly #states = new Set<NativeState>();
  #queue: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(
    fields: Pick<
      Model,
      "config" | "plan" | "layers" | "revision" | "configSha256" | "trunk" | "isa" | "threads"
    >,
    engine: NativeEngine,
    sessions: number,
    census: CensusKeeper | undefined,
  ) {
    this.config = fields.config;
    this.plan = fields.plan;
    this.layers = fields.layers;
    this.revision = fields.revision;
    this.configSha256 = fields.configSha256;
    this.trunk = fields.trunk;
    this.isa = fields.isa;
    this.threads = fields.threads;
    this.censusTokens = census?.tokens ?? null;
    this.#census = census;
    this.#engine = engine;
    this.#sessions = sessions;
  }

  /**
   * Reads the headers, solves the memory plan and takes the memory; no weights are read yet.
   *
   * Throws E_USAGE for options out of range, E_CONFIG for a config that is refused, E_DATA for a damaged checkpoint or a
   * trunk of another one, E_MEMORY when the budget cannot be kept (with `details: {needed, given}`).
   */
  static async open(options: ModelOptions): Promise<Model> {
    const { signal, onEvent, modelDir, trunkDir } = options;
    const threads = inRange("threads", options.threads ?? availableParallelism(), 1, MOST_THREADS);
    const contextTokens = inRange("contextTokens", options.contextTokens ?? 4096, 1, 1 << 24);
    const sessions = inRange("sessions", options.sessions ?? 1, 1, 1 << 10);
    const chunk = Math.min(inRange("chunk", options.chunk ?? 128, 1, MOST_CHUNK), contextTokens);
    const addon = loadNative();
    const isa = requireIsa(addon, options.isa ?? process.env["K3_ISA"] ?? "");
    throwIfAborted(signal);
    const checkpoint = await openCheckpoint(modelDir, { layers: options.layers, signal, onEvent });
    throwIfAborted(signal);
    const trunk = trunkDir === undefined ? undefined : await openTrunk(trunkDir);
    const { config, layers, revision, configSha256 } = checkpoint;
    const tuning = options.tuning ?? {};
    const tables = await runInSlices(buildTables(checkpoint, trunk, tuning.blockBytes), signal);
    const engine = fromNative(() => new addon.NativeEngine(tables));
    await native(engine.prepare());
    const counted = { configSha256, layers: tables.experts.layers, experts: tables.experts.experts };
    // A census is of all layers: the first few alone would not be what a router of the whole model sees.
    const census =
      options.census === undefined || counted.layers === 0 || layers < config.layers
        ? undefined
        : await CensusKeeper.open(options.census, counted, onEvent);
    // Each of the next takes a few milliseconds with 110,000 blocks: the event loop gets a turn between them.
    await setImmediate();
    const sizes = engine.sizes();
    await setImmediate();
    throwIfAborted(signal);

    const budgetBytes = requireBudget(options.memory ?? "auto");
    const planning = planSteps({
      ...{ budgetBytes, threads, contextTokens, sessions, chunk, tuning },
      baselineBytes: residentBytes().now,
      sizes,
      vocab: config.vocabSize,
      moeLayers: tables.experts.layers,
      experts: tables.experts.experts,
      expertsPerToken: config.expertsPerToken,
      expertBytes: tables.experts.partBytes.reduce((sum, bytes) => sum + bytes, 0),
    });
    const plan = await runInSlices(planning, signal);
    requireRoom(plan);
    await setImmediate();
    fromNative(() =>
      engine.open({
        threads,
        chunk: plan.chunk,
        trunkReaders: Math.min(tuning.readers ?? READERS, plan.ringBlocks),
        ringSlots: plan.ringBlocks,
        expertReaders: tuning.readers ?? READERS,
        expertsCached: plan.expertsCached,
        expertsInFlight: Math.max(1, plan.expertsInFlight),
        pinned: plan.pinned,
        direct: tuning.direct ?? true,
        census: census?.shares ?? new Float32Array(0),
        pace: tuning.pace === undefined ? 0 : tuning.pace === "disk" ? 1 : 2,
        isa,
      }),
    );
    const codec = trunk?.manifest.codec ?? "none";
    const fields = { config, plan, layers, revision, configSha256, isa, threads };
    return new Model({ ...fields, trunk: { codec, storedBytes: plan.trunkBytes } }, engine, sessions, census);
  }

  /** A new sequence, empty. Throws E_MEMORY when as many exist as the plan has room for. */
  session(): Session {
    return new Session(this);
  }

  /** Running totals since the model was opened; cheap, may be asked for at any time. */
  stats(): NativeStats {
    this.#requireOpen();
    return this.#engine.stats();
  }

  /** Stops what runs and frees everything, sessions included. Safe to call twice. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#engine.interrupt();
    await this.#queue.catch(() => undefined);
    await this.#census?.add(this.#engine.takeCensus());
    for (const state of this.#states) void this.#engine.release(state);
    this.#states.clear();
    await this.#engine.freeMemory();
    this.#engine.close();
  }

  /** For Session: takes the memory of a state. */
  createState(): NativeState {
    this.#requireOpen();
    if (this.#states.size >= this.#sessions) {
      throw new StageError("E_MEMORY", `the plan has room for ${this.#sessions} sessions and snapshots`, {
        hint: "close one, or open the model with a larger `sessions`",
        details: { needed: this.#states.size + 1, given: this.#sessions },
      });
    }
    const state = fromNative(() => this.#engine.createState(this.plan.contextTokens));
    this.#states.add(state);
    return state;
  }

  /** For Session: gives it back. */
  freeState(state: NativeState): void {
    if (this.#states.delete(state)) void this.#engine.release(state);
  }

  /** For Session: copies one state over another, in turn with the passes. */
  copyState(to: NativeState, from: NativeState): Promise<void> {
    return this.#inTurn(async () => {
      this.#requireOpen();
      await native(this.#engine.copy(to, from));
    });
  }

  /** For Session: one pass over at most `plan.chunk` ids; flags as in native.ts. Passes of a model take turns. */
  forward(
    state: NativeState,
    ids: readonly number[],
    flags: number,
    phase: string,
    options: StageOptions,
  ): Promise<Pass> {
    return this.#inTurn(async () => {
      this.#requireOpen();
      throwIfAborted(options.signal);
      const before = this.#engine.stats();
      const started = performance.now();
      const interrupt = () => this.#engine.interrupt();
      const stopProgress = this.#reportProgress(phase, before, options);
      const running = native(this.#engine.forward(state, Int32Array.from(ids), flags));
      options.signal?.addEventListener("abort", interrupt, { once: true });
      try {
        const pass = await running;
        const seconds = (performance.now() - started) / 1000;
        const stats = passStats(ids.length, seconds, before, this.#engine.stats());
        if (this.#census?.due) await this.#census.add(this.#engine.takeCensus());
        return { ...pass, stats };
      } catch (error) {
        throwIfAborted(options.signal);
        throw error;
      } finally {
        options.signal?.removeEventListener("abort", interrupt);
        stopProgress();
      }
    });
  }

  #reportProgress(phase: string, before: NativeStats, { onEvent }: StageOptions): () => void {
    if (!onEvent) return () => undefined;
    const meter = new Meter({ stage: "run", phase, unit: "layers", total: this.layers, onEvent });
    const bytes = (stats: NativeStats) => stats.trunkBytes + stats.headBytes + stats.expertBytes;
    const started = performance.now();
    const report = () => {
      const stats = this.#engine.stats();
      const read = bytes(stats) - bytes(before);
      const seconds = Math.max(0.001, (performance.now() - started) / 1000);
      meter.phase = `${phase}: layer ${Math.min(stats.layer + 1, this.layers)} of ${this.layers}`;
      meter.detail = {
        read_bytes: read,
        bytes_per_second: Math.round(read / seconds),
        retries: stats.retries,
      };
      meter.set(stats.layer);
    };
    const timer = setInterval(report, POLL_MS);
    return () => {
      clearInterval(timer);
      if (this.#closed) return;
      report();
      meter.emit();
    };
  }

  #inTurn<T>(job: () => Promise<T>): Promise<T> {
    const result = this.#queue.then(job, job);
    this.#queue = result.catch(() => undefined);
    return result;
  }

  #requireOpen(): void {
    if (this.#closed) throw new StageError("E_USAGE", "the model is closed");
  }
}

function passStats(tokens: number, seconds: number, before: NativeStats, after: NativeStats): PassStats {
  const requested = after.expertsRequested - before.expertsRequested;
  const resident = after.expertsResident - before.expertsResident;
  return {
    tokens,
    seconds,
    read: {
      trunk_bytes: after.trunkBytes - before.trunkBytes,
      head_bytes: after.headBytes - before.headBytes,
      expert_bytes: after.expertBytes - before.expertBytes,
    },
    experts: { requested, resident, read: requested - resident },
    wait_seconds: (after.waitNs - before.waitNs) / 1e9,
  };
}

function requireIsa(addon: NativeAddon, name: string): string {
  const isa = addon.isa(name);
  if (isa !== null) return isa;
  throw new StageError("E_USAGE", `instruction set not available: ${name}`, {
    hint: "scalar always is; without K3_ISA the best is chosen",
  });
}

/** A budget that the machine or a control group cannot give would end in the kernel killing the process. */
function requireRoom({ plannedBytes }: MemoryPlan): void {
  const { most, limit } = availableMemory();
  if (plannedBytes <= most) return;
  const whose = limit === "system" ? "this machine has" : "the control group of this process leaves";
  throw new StageError(
    "E_MEMORY",
    `the budget comes to ${formatBytes(plannedBytes)} (${plannedBytes} bytes); ${whose} ${formatBytes(most)} (${most} bytes)`,
    { hint: "give a smaller --memory, or auto", details: { needed: plannedBytes, given: most } },
  );
}

function requireBudget(memory: number | "auto"): number {
  if (memory === "auto") return availableMemory().bytes;
  if (Number.isFinite(memory) && memory > 0) return memory;
  throw new StageError("E_USAGE", `memory is ${memory}: give a number of bytes, or "auto"`);
}

function inRange(name: string, value: number, least: number, most: number): number {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new StageError("E_USAGE", `${name} is ${value}; it must be an integer from ${least} to ${most}`);
}

/** An error of the addon as the StageError that it names. */
function stageError(error: unknown): StageError {
  const { code, hint } = error as { code?: string; hint?: string };
  if (error instanceof Error && typeof code === "string" && code.startsWith("E_")) {
    const options = { cause: error, ...(hint === undefined ? {} : { hint }) };
    return new StageError(code as StageError["code"], error.message, options);
  }
  return toStageError(error);
}

function fromNative<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw stageError(error);
  }
}

async function native<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise;
  } catch (error) {
    throw stageError(error);
  }
}
