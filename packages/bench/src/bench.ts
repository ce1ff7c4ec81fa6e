import { randomInt } from "node:crypto";
import { cpus } from "node:os";
import { join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import { lockFile, StageError, type StageOptions, writeFileAtomically } from "@k3/stage";
import { otherEngine } from "./against.ts";
import { BenchJournal, madeWith } from "./bench-journal.ts";
import type { BenchResult, ColdMode } from "./bench-result.ts";
import { codecRatios } from "./compare.ts";
import { compareWithOther, headlines, pointOf } from "./conclusions.ts";
import { matrix, trunksOf } from "./matrix.ts";
import { measureAll } from "./measure-all.ts";
import { findReadAccounts } from "./read-accounts.ts";
import { runReceipt } from "./receipt.ts";
import { htmlReport, markdownReport } from "./report.ts";
import { LEAST_RUNS } from "./statistics.ts";

export interface BenchOptions extends StageOptions {
  modelDir: string;
  /** Its packed trunk; several measure their codecs side by side, with null for the checkpoint's own weights. */
  trunkDir?: string | null | readonly (string | null)[] | undefined;
  /** Of each point. Default 3, or 4 where a ratio comes of them: with `against`, and with several trunks. */
  runs?: number | undefined;
  /** Budgets in bytes; what is free when not given. */
  memory?: readonly number[] | undefined;
  threads?: readonly number[] | undefined;
  /** Default: the prompt that is known for this checkpoint. */
  prompts?: readonly string[] | undefined;
  generate?: number | undefined;
  /** Default: drop as root, else evict. */
  cold?: ColdMode | undefined;
  outDir?: string | undefined;
  against?: string | undefined;
  idsPattern?: string | undefined;
  secondsPattern?: string | undefined;
}

/**
 * Measures a matrix of prompts, budgets, thread counts and trunks, every run in a process of its own, points in random order
 * within each round. Ids are a gate: runs that differ from each other or from what is known make the result not ok.
 * Writes bench.json, bench.md and bench.html into `outDir`. A bench that was stopped continues there after its last
 * finished run.
 */
export async function bench(options: BenchOptions): Promise<BenchResult> {
  const { modelDir, generate = 8, outDir = "k3-bench", signal, onEvent } = options;
  const { against: command, idsPattern, secondsPattern } = options;
  if (new Set([command, idsPattern, secondsPattern].map((given) => given === undefined)).size > 1)
    throw new StageError("E_USAGE", "--against, --ids-pattern and --seconds-pattern belong together");
  const trunks = await trunksOf(options.trunkDir);
  const rated = command !== undefined || trunks.length > 1;
  const runs = options.runs ?? (rated ? LEAST_RUNS : 3);
  if (command !== undefined && (runs < 3 || generate < 3)) {
    throw new StageError(
      "E_USAGE",
      `comparing with another engine takes at least three runs of three tokens each; these are ${runs} of ${generate}`,
      { hint: "give --runs 4 --generate 3 or more" },
    );
  }
  const other = command === undefined ? undefined : otherEngine(command, idsPattern!, secondsPattern!);
  const cold = options.cold ?? (process.getuid?.() === 0 ? "drop" : "evict");
  const checkpoint = await openCheckpoint(modelDir, { signal });
  const dirs = [modelDir, ...trunks.flatMap((trunk) => trunk?.dir ?? [])];
  const accounts = await findReadAccounts(dirs);
  const points = await matrix(options, trunks, accounts, checkpoint.configSha256);
  const settings = {
    runs,
    generate,
    cold,
    memory: options.memory ?? "auto",
    threads: options.threads ?? cpus().length,
    prompts: options.prompts ?? null,
    trunks: trunks.map((trunk) => trunk?.dir ?? null),
  };
  const made = await runReceipt({ checkpoint, modelDir, trunks, accounts, options: settings });
  const binding = madeWith(made, { trunks, command, idsPattern, secondsPattern });
  const lock = await lockFile(join(outDir, "bench.lock"), "measuring");
  let journal: BenchJournal | undefined;
  try {
    journal = await BenchJournal.open(outDir, binding, { seed: randomInt(2 ** 32), onEvent });
    const theirs = await measureAll({ points, runs, cold, dirs, other, journal, signal, onEvent });
    const measured = points.map(pointOf);
    const codecs = codecRatios(measured);
    const against = other ? compareWithOther(other.command, measured, theirs) : null;
    const ok = measured.every((point) => point.ids_as_expected !== false) && (against?.ids_equal ?? true);
    const result: BenchResult = {
      format: "k3-bench",
      version: 1,
      ok,
      cold,
      points: measured,
      codec_ratios: codecs,
      against,
      receipt: { ...made, options: { ...settings, order_seed: journal.seed } },
      out_dir: outDir,
      resumed_runs: journal.finished.length,
      lines: headlines(measured, codecs, against, { ok, resumed: journal.finished.length }),
    };
    await writeFileAtomically(join(outDir, "bench.json"), `${JSON.stringify(result)}\n`);
    await writeFileAtomically(join(outDir, "bench.md"), markdownReport(result));
    await writeFileAtomically(join(outDir, "bench.html"), htmlReport(result));
    await journal.remove();
    return result;
  } finally {
    await journal?.close();
    await lock.release();
  }
}
