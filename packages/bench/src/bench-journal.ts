import { rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { Journal, type StageOptions } from "@k3/stage";
import { z } from "zod";
import type { OtherRun } from "./against.ts";
import type { RunReceipt } from "./bench-result.ts";
import type { MeasuredRun } from "./run-protocol.ts";
import type { Turn } from "./turns.ts";

const startSchema = z.strictObject({
  format: z.literal("k3-bench-journal"),
  version: z.literal(1),
  /** Of the order of the runs: the rest of them goes on in it. */
  seed: z.int().nonnegative(),
  /** What must be the same for runs to belong together, each as JSON. */
  made_with: z.record(z.string(), z.string()),
});

/** A run as the checksum of its record vouches for it. */
const finishedSchema = z.strictObject({
  turn: z.union([z.int().nonnegative(), z.literal("other")]),
  run: z.custom<MeasuredRun | OtherRun>((value) => typeof value === "object" && value !== null),
});

/** `OUT/bench.journal`: the finished runs of a bench. One that was stopped continues with the next run. */
export class BenchJournal {
  readonly #journal: Journal;
  readonly seed: number;
  /** In the order of the turns. */
  readonly finished: readonly { turn: Turn; run: MeasuredRun | OtherRun }[];

  private constructor(journal: Journal, seed: number, finished: BenchJournal["finished"]) {
    this.#journal = journal;
    this.seed = seed;
    this.finished = finished;
  }

  /**
   * Continues the journal of a directory, or begins it with `seed`. Runs that were made with something else (another
   * model, trunk, machine, build, or other options) do not belong to these: it says so and starts over.
   */
  static async open(
    outDir: string,
    made: Record<string, unknown>,
    { seed, onEvent }: Pick<StageOptions, "onEvent"> & { seed: number },
  ): Promise<BenchJournal> {
    const path = join(outDir, "bench.journal");
    const warn = (why: string) => {
      const message = `the finished runs in ${path} ${why}: starting over; they are kept in ${path}.old`;
      onEvent?.({ type: "log", level: "warn", stage: "bench", message });
    };
    const made_with = Object.fromEntries(
      Object.entries(made).map(([name, value]) => [name, JSON.stringify(value ?? null)]),
    );
    const before = (await stat(path).catch(() => undefined))?.size ?? 0;
    const { journal, records } = await Journal.open(path);
    const start = startSchema.safeParse(records[0]);
    const finished = z.array(finishedSchema).safeParse(records.slice(1));
    if (start.success && finished.success) {
      const names = new Set([...Object.keys(made_with), ...Object.keys(start.data.made_with)]);
      const differences = [...names].filter((name) => made_with[name] !== start.data.made_with[name]);
      if (differences.length === 0) return new BenchJournal(journal, start.data.seed, finished.data);
      if (finished.data.length > 0) warn(`were made with another ${differences.join(", ")}`);
    } else if (before > 0) warn("cannot be read");
    await journal.close();
    if (before > 0) await rename(path, `${path}.old`);
    const fresh = (await Journal.open(path)).journal;
    await fresh.append({ format: "k3-bench-journal", version: 1, seed, made_with });
    return new BenchJournal(fresh, seed, []);
  }

  add(turn: Turn, run: MeasuredRun | OtherRun): Promise<void> {
    return this.#journal.append({ turn, run });
  }

  close(): Promise<void> {
    return this.#journal.close();
  }

  /** Once the report is written. */
  remove(): Promise<void> {
    return rm(this.#journal.path);
  }
}

/** What runs of one result share; what the system has free changes from run to run, and is in each. */
export function madeWith(receipt: RunReceipt, other: Record<string, unknown>): Record<string, unknown> {
  const { options, machine, model, versions, commit, addon_sha256 } = receipt;
  const { usable_memory_bytes, memory_limit, ...hardware } = machine;
  return { ...options, ...other, model, machine: hardware, versions, commit, "native part": addon_sha256 };
}
