import type { StageOptions } from "@k3/stage";
import { type OtherEngine, type OtherRun, runOther } from "./against.ts";
import type { BenchJournal } from "./bench-journal.ts";
import type { ColdMode } from "./bench-result.ts";
import { makeCold } from "./cold.ts";
import { describeRequest, type Point } from "./matrix.ts";
import { measureRun } from "./measure.ts";
import type { MeasuredRun } from "./run-protocol.ts";
import { type Turn, turns } from "./turns.ts";

interface Work extends StageOptions {
  /** Filled with their runs. */
  points: readonly Point[];
  runs: number;
  cold: ColdMode;
  /** Whose files are put out of the cache before each run. */
  dirs: readonly string[];
  other: OtherEngine | undefined;
  journal: BenchJournal;
}

/** Does what is left of all runs, one after the other, each journaled when it is finished; gives the other engine's. */
export async function measureAll({ points, runs, cold, dirs, other, journal, ...options }: Work) {
  const { signal, onEvent } = options;
  const theirs: OtherRun[] = [];
  const order = turns(points.length, runs, { other: other !== undefined, seed: journal.seed });
  const measure = (turn: Turn) =>
    turn === "other" ? runOther(other!, signal) : measureRun(points[turn]!.request, { signal, onEvent });
  for (const [index, turn] of order.entries()) {
    let run = journal.finished[index]?.run;
    if (!run) {
      const what = turn === "other" ? other!.command : describeRequest(points[turn]!.request);
      const message = `run ${index + 1} of ${order.length}: ${what}`;
      onEvent?.({ type: "log", level: "info", stage: "bench", message });
      await makeCold(cold, dirs);
      run = await measure(turn);
      await journal.add(turn, run);
    }
    if (turn === "other") theirs.push(run as OtherRun);
    else points[turn]!.runs.push(run as MeasuredRun);
  }
  return theirs;
}
