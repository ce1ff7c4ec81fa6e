import { formatBytes, runAtOnce, StageError, type Steps } from "@k3/stage";
import { expertBytesSaved } from "./expert-savings.ts";
import type { NativeSizes } from "./native.ts";

export interface PlanInput {
  /** What the whole process may take at its peak. */
  budgetBytes: number;
  /** What it takes already, with the model's headers read. */
  baselineBytes: number;
  sizes: NativeSizes;
  threads: number;
  contextTokens: number;
  /** Sequences, snapshots included, that have room at the same time. */
  sessions: number;
  /** The most tokens a pass should take; fewer when memory is short. */
  chunk: number;
  /** Positions whose logits are kept, all of them; none if not given. */
  allLogits?: number;
  vocab: number;
  moeLayers: number;
  experts: number;
  expertsPerToken: number;
  expertBytes: number;
  /** What is given instead of solved. */
  tuning?: { ringBlocks?: number | undefined; expertsCached?: number | undefined };
}

/** How a memory budget is spent. All in bytes unless the name says otherwise; `parts` sum up to `plannedBytes`. */
export interface MemoryPlan {
  budgetBytes: number;
  plannedBytes: number;
  parts: {
    /** Node.js, the program, the index of the tensors, and room for the garbage of a run. */
    process: number;
    state: number;
    latentCache: number;
    activations: number;
    /** Of all positions of a prefill, where they were asked for. */
    logits: number;
    workers: number;
    ring: number;
    expertsInFlight: number;
    pinnedTrunk: number;
    expertCache: number;
  };
  /** Tokens per pass. */
  chunk: number;
  contextTokens: number;
  ringBlocks: number;
  expertsInFlight: number;
  expertsCached: number;
  /** Stored bytes of the pinned blocks, out of all that a pass with logits needs. */
  pinnedBytes: number;
  trunkBytes: number;
  /** What a decoded token will read at this budget, by the solved division of it. */
  readBytesPerToken: { trunk: number; experts: number };
  /** One byte per block of the trunk. */
  pinned: Uint8Array;
}

/** V8's heap grows by about this much in a run: logits, buffers of text, compiled code. */
const PROCESS_GROWTH = 48e6;
const STACK = 128e3;
/** Blocks in the ring and experts on their way: enough for a disk with a millisecond of latency at several GB/s. */
const RING_BLOCKS = [48, 32, 16, 8, 4, 2];
const IN_FLIGHT = [16, 8, 4, 2, 1];

/**
 * Divides a budget. First what a run cannot do without, in the most comfortable form that fits; then, of the rest, the
 * split between pinned trunk and cached experts that saves the most bytes per decoded token. Throws E_MEMORY (exit 5)
 * with `details: {needed, given}` when even the smallest form does not fit.
 */
export function planMemory(input: PlanInput): MemoryPlan {
  return runAtOnce(planSteps(input));
}

/** planMemory in steps: the released trunk has 110,000 blocks. */
export function* planSteps(input: PlanInput): Steps<MemoryPlan> {
  const { budgetBytes, sizes } = input;
  const forms = [...workingForms(input)];
  const form = forms.find(({ bytes }) => bytes <= budgetBytes);
  if (!form) {
    const needed = Math.min(...forms.map(({ bytes }) => bytes));
    throw new StageError(
      "E_MEMORY",
      `the model needs at least ${formatBytes(needed)} for a context of ${input.contextTokens} tokens; ${formatBytes(budgetBytes)} were given`,
      {
        hint: `give --memory ${Math.ceil(needed / 1e8) / 10}GB or more, or a shorter context`,
        details: { needed, given: budgetBytes },
      },
    );
  }
  const rest = budgetBytes - form.bytes;
  const given = input.tuning?.expertsCached;
  const trunkTotal = yield* sum(sizes.blockBytes);
  const trunkBytes = yield* sum(sizes.storedBytes);
  const split =
    given === undefined
      ? solveSplit(input, rest, trunkTotal, trunkBytes)
      : { expertsCached: Math.min(given, Math.floor(rest / Math.max(1, sizes.expertSlot))) };
  const { pinned, pinnedTrunk, pinnedBytes } = yield* spread(
    sizes,
    rest - split.expertsCached * sizes.expertSlot,
    trunkTotal,
  );
  const expertCache = split.expertsCached * sizes.expertSlot;
  const perToken = input.moeLayers * input.expertsPerToken * input.expertBytes;
  return {
    budgetBytes,
    plannedBytes: form.bytes + pinnedTrunk + expertCache,
    parts: { ...form.parts, pinnedTrunk, expertCache },
    chunk: form.chunk,
    contextTokens: input.contextTokens,
    ringBlocks: form.ringBlocks,
    expertsInFlight: form.expertsInFlight,
    expertsCached: split.expertsCached,
    pinnedBytes,
    trunkBytes,
    readBytesPerToken: {
      trunk: trunkBytes - pinnedBytes,
      experts:
        perToken - expertBytesSaved(split.expertsCached * input.expertBytes, perToken, totalExperts(input)),
    },
    pinned,
  };
}

interface WorkingForm {
  bytes: number;
  parts: Omit<MemoryPlan["parts"], "pinnedTrunk" | "expertCache">;
  chunk: number;
  ringBlocks: number;
  expertsInFlight: number;
}

/** From the most comfortable to the smallest: first shorter chunks, then fewer reads in flight. */
function* workingForms(input: PlanInput): Generator<WorkingForm> {
  const chunks: number[] = [];
  for (let chunk = input.chunk; chunk > 1; chunk = Math.ceil(chunk / 2)) chunks.push(chunk);
  chunks.push(1);
  const rings = input.tuning?.ringBlocks === undefined ? RING_BLOCKS : [input.tuning.ringBlocks];
  const comfortable = [rings[0]!, IN_FLIGHT[0]!] as const;
  for (const chunk of chunks.slice(0, 3)) yield workingForm(input, chunk, ...comfortable);
  for (const [step, ringBlocks] of rings.entries()) {
    for (const chunk of chunks)
      yield workingForm(input, chunk, ringBlocks, IN_FLIGHT[Math.min(step, IN_FLIGHT.length - 1)]!);
  }
}

function workingForm(input: PlanInput, chunk: number, ringBlocks: number, inFlight: number): WorkingForm {
  const { sizes, threads, sessions } = input;
  const mostExperts = Math.min(input.experts, chunk * input.expertsPerToken);
  const expertsInFlight = input.moeLayers > 0 ? Math.min(inFlight, mostExperts) : 0;
  const parts = {
    process: input.baselineBytes + PROCESS_GROWTH + sizes.tables + 3 * input.vocab * 4,
    state: sizes.stateFixed * sessions,
    latentCache: sizes.statePosition * input.contextTokens * sessions,
    activations: sizes.activations + (chunk - 1) * sizes.activationsPerToken,
    logits: logitsBytes(input.allLogits ?? 0, chunk, input.vocab),
    workers: (sizes.perWorker + STACK) * threads,
    ring: sizes.ringSlot * ringBlocks,
    expertsInFlight: sizes.expertSlot * expertsInFlight,
  };
  const bytes = Object.values(parts).reduce((sum, part) => sum + part, 0);
  return { bytes, parts, chunk, ringBlocks, expertsInFlight };
}

/** What it takes to keep the logits of so many positions: theirs, and those of the chunk at work on their way, twice. */
export function logitsBytes(positions: number, chunk: number, vocab: number): number {
  return (positions + 2 * Math.min(positions, chunk)) * vocab * 4;
}

/** Blocks between two pauses. */
const STEP = 16_384;

function* sum(values: Uint32Array): Steps<number> {
  let total = 0;
  for (let i = 0; i < values.length; i++) {
    total += values[i]!;
    if (i % STEP === 0) yield;
  }
  return total;
}

const totalExperts = (input: PlanInput): number => input.moeLayers * input.experts * input.expertBytes;

/**
 * A pinned byte of trunk saves a byte per token; a byte of expert cache saves what the recorded trace says (see
 * expert-savings.ts), which is less until the trunk is resident. Every split in steps of 1/256 of the rest is compared.
 */
function solveSplit(
  input: PlanInput,
  rest: number,
  trunkTotal: number,
  storedTotal: number,
): { expertsCached: number } {
  const { sizes } = input;
  const most = input.moeLayers * input.experts;
  if (most === 0 || sizes.expertSlot === 0) return { expertsCached: 0 };
  const perToken = input.moeLayers * input.expertsPerToken * input.expertBytes;
  let best = { expertsCached: 0, saved: -1 };
  const candidates = new Set([Math.floor(Math.max(0, rest - trunkTotal) / sizes.expertSlot)]);
  for (let step = 0; step <= 256; step++) candidates.add(Math.floor((rest * step) / 256 / sizes.expertSlot));
  for (const count of [...candidates].sort((a, b) => a - b)) {
    const expertsCached = Math.min(count, most);
    const pinnable = Math.min(trunkTotal, rest - expertsCached * sizes.expertSlot);
    const saved =
      (pinnable / trunkTotal) * storedTotal +
      expertBytesSaved(expertsCached * input.expertBytes, perToken, totalExperts(input));
    if (saved > best.saved) best = { expertsCached, saved };
  }
  return { expertsCached: best.expertsCached };
}

/**
 * Pins blocks worth at most `room` bytes, spread evenly over the pass: while pinned blocks are computed, the disk reads
 * the others ahead.
 */
function* spread(
  { blockBytes, storedBytes }: NativeSizes,
  room: number,
  trunkTotal: number,
): Steps<{ pinned: Uint8Array; pinnedTrunk: number; pinnedBytes: number }> {
  const pinned = new Uint8Array(blockBytes.length);
  const share = Math.min(1, Math.max(0, room) / trunkTotal);
  let credit = 0;
  let pinnedTrunk = 0;
  let pinnedBytes = 0;
  for (let block = 0; block < blockBytes.length; block++) {
    if (block % STEP === 0) yield;
    const bytes = blockBytes[block]!;
    credit += share * bytes;
    if (credit < bytes - 0.5 || bytes > room - pinnedTrunk) continue;
    pinned[block] = 1;
    credit -= bytes;
    pinnedTrunk += bytes;
    pinnedBytes += storedBytes[block]!;
  }
  return { pinned, pinnedTrunk, pinnedBytes };
}
