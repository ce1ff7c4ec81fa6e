import { availableParallelism } from "node:os";
import { setImmediate } from "node:timers/promises";
import { type K3Config, openCheckpoint } from "@k3/checkpoint";
import { formatBytes, runInSlices, StageError, throwIfAborted } from "@k3/stage";
import { openTrunk } from "@k3/trunk";
import { CensusKeeper } from "./census-keeper.ts";
import { loadNative } from "./loader.ts";
import { availableMemory, residentBytes } from "./memory.ts";
import type { ModelOptions } from "./model-options.ts";
import type { NativeAddon, NativeEngine } from "./native.ts";
import { fromNative, native } from "./native-errors.ts";
import { type MemoryPlan, planSteps } from "./plan.ts";
import { buildTables } from "./tables.ts";

/** Reads in flight of each kind: what it takes to keep a disk busy that answers within a millisecond. */
const READERS = 8;
const MOST_THREADS = 1024;
const MOST_CHUNK = 4096;

/** An engine that has its memory, its files and its threads, and what is known of its model. */
export interface OpenedEngine {
  engine: NativeEngine;
  census: CensusKeeper | undefined;
  config: K3Config;
  plan: MemoryPlan;
  layers: number;
  revision: string | null;
  configSha256: string;
  trunk: { codec: string; storedBytes: number };
  isa: string;
  threads: number;
  sessions: number;
}

/** Reads the headers, solves the memory plan and takes the memory: see Model.open for the errors. */
export async function openEngine(options: ModelOptions): Promise<OpenedEngine> {
  const { signal, onEvent, modelDir, trunkDir } = options;
  const threads = inRange("threads", options.threads ?? availableParallelism(), 1, MOST_THREADS);
  const contextTokens = inRange("contextTokens", options.contextTokens ?? 4096, 1, 1 << 24);
  const sessions = inRange("sessions", options.sessions ?? 1, 1, 1 << 10);
  const chunk = Math.min(inRange("chunk", options.chunk ?? 128, 1, MOST_CHUNK), contextTokens);
  const allLogits = inRange("allLogits", options.allLogits ?? 0, 0, 1 << 24);
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
    ...{ budgetBytes, threads, contextTokens, sessions, chunk, allLogits, tuning },
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
  return {
    ...{ engine, census, config, plan, layers, revision, configSha256, isa, threads, sessions },
    trunk: { codec: trunk?.manifest.codec ?? "none", storedBytes: plan.trunkBytes },
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
