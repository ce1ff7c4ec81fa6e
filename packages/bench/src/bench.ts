import { mkdir } from "node:fs/promises";
import { cpus } from "node:os";
import { join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import { nativeFile } from "@k3/engine";
import { StageError, type StageOptions, writeFileAtomically } from "@k3/stage";
import { otherEngine, runOther } from "./against.ts";
import {
  type Against,
  type BenchMedian,
  type BenchPoint,
  type BenchResult,
  type CodecRatio,
  type ColdMode,
  pointLabel,
  type RunReceipt,
} from "./bench-result.ts";
import { makeCold } from "./cold.ts";
import { codecRatios, decodeNoise, describeRatio, noiseFloor, sample } from "./compare.ts";
import { describeMachine } from "./machine.ts";
import { describeRequest, matrix, type Point, sha256Of, trunksOf } from "./matrix.ts";
import { measureRun } from "./measure.ts";
import { findReadAccounts } from "./read-accounts.ts";
import { htmlReport, markdownReport } from "./report.ts";
import { median, randomSource, ratioInterval, shuffled, spread } from "./statistics.ts";

export interface BenchOptions extends StageOptions {
  modelDir: string;
  /** Its packed trunk; several measure their codecs side by side, with null for the checkpoint's own weights. */
  trunkDir?: string | null | readonly (string | null)[] | undefined;
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
 * Writes bench.json, bench.md and bench.html into `outDir`.
 */
export async function bench(options: BenchOptions): Promise<BenchResult> {
  const { modelDir, runs = 3, generate = 8, outDir = "k3-bench", signal, onEvent } = options;
  if (
    (options.against === undefined) !== (options.idsPattern === undefined) ||
    (options.against === undefined) !== (options.secondsPattern === undefined)
  ) {
    throw new StageError("E_USAGE", "--against, --ids-pattern and --seconds-pattern belong together");
  }
  if (options.against !== undefined && (runs < 3 || generate < 3)) {
    throw new StageError(
      "E_USAGE",
      `comparing with another engine takes at least three runs of three tokens each; these are ${runs} of ${generate}`,
      { hint: "give --runs 4 --generate 3 or more" },
    );
  }
  const other =
    options.against === undefined
      ? undefined
      : otherEngine(options.against, options.idsPattern!, options.secondsPattern!);
  const cold = options.cold ?? (process.getuid?.() === 0 ? "drop" : "evict");
  const checkpoint = await openCheckpoint(modelDir, { signal });
  const trunks = await trunksOf(options.trunkDir);
  const dirs = [modelDir, ...trunks.flatMap((trunk) => trunk?.dir ?? [])];
  const accounts = await findReadAccounts(dirs);
  const points = await matrix(options, trunks, accounts, checkpoint.configSha256);
  const random = randomSource(points.length * runs);
  const theirs: Awaited<ReturnType<typeof runOther>>[] = [];
  const measure = async (point: Point) => {
    const done = points.reduce((sum, { runs }) => sum + runs.length, 0);
    const message = `run ${done + 1} of ${points.length * runs}: ${describeRequest(point.request)}`;
    onEvent?.({ type: "log", level: "info", stage: "bench", message });
    await makeCold(cold, dirs);
    point.runs.push(await measureRun(point.request, { signal, onEvent }));
  };
  const measureOther = async () => {
    onEvent?.({
      type: "log",
      level: "info",
      stage: "bench",
      message: `run ${theirs.length + 1} of ${runs}: ${other!.command}`,
    });
    await makeCold(cold, dirs);
    theirs.push(await runOther(other!, signal));
  };
  for (let round = 0; round < runs; round++) {
    // A B B A: a drift of the machine falls on both sides alike.
    if (other && round % 2 === 1) await measureOther();
    for (const point of shuffled(points, random)) await measure(point);
    if (other && round % 2 === 0) await measureOther();
  }
  const measured = points.map(finish);
  const codecs = codecRatios(measured);
  const against = other ? compareWithOther(other.command, measured, theirs) : null;
  const ok = measured.every((point) => point.ids_as_expected !== false) && (against?.ids_equal ?? true);
  await mkdir(outDir, { recursive: true });
  const addon = nativeFile();
  const receipt: RunReceipt = {
    versions: { engine: addon.version, node: process.version },
    addon_sha256: await sha256Of(addon.path),
    model: {
      dir_revision: checkpoint.revision,
      config_sha256: checkpoint.configSha256,
      layers: checkpoint.config.layers,
    },
    trunk_manifest_sha256: trunks.length === 1 ? (trunks[0]?.manifest_sha256 ?? null) : null,
    accounts,
    options: {
      runs,
      generate,
      cold,
      memory: options.memory ?? "auto",
      threads: options.threads ?? cpus().length,
      prompts: options.prompts ?? null,
      trunks: trunks.map((trunk) => trunk?.dir ?? null),
    },
    machine: await describeMachine(modelDir),
  };
  const result: BenchResult = {
    format: "k3-bench",
    version: 1,
    ok,
    cold,
    points: measured,
    codec_ratios: codecs,
    against,
    receipt,
    out_dir: outDir,
    lines: headlines(measured, codecs, against, ok),
  };
  await writeFileAtomically(join(outDir, "bench.json"), `${JSON.stringify(result)}\n`);
  await writeFileAtomically(join(outDir, "bench.md"), markdownReport(result));
  await writeFileAtomically(join(outDir, "bench.html"), htmlReport(result));
  return result;
}

function finish({ request, trunk, prompt, expected, runs }: Point): BenchPoint {
  const per = (of: (sample: number[]) => number): BenchMedian => {
    const value = (phase: "open" | "cold_step" | "prefill") => of(runs.map((run) => run[phase]));
    const decoded = (phase: "first_decode" | "decode") => {
      const seconds = runs.map((run) => run[phase]).filter((one) => one !== null);
      return seconds.length === runs.length ? of(seconds) : null;
    };
    return {
      open: value("open"),
      cold_step: value("cold_step"),
      prefill: value("prefill"),
      first_decode: decoded("first_decode"),
      decode: decoded("decode"),
    };
  };
  const alike = runs.every((run) => run.generated_ids.join() === runs[0]!.generated_ids.join());
  return {
    memory_bytes: runs[0]!.memory_bytes,
    memory: request.memory,
    threads: runs[0]!.threads,
    codec: runs[0]!.codec,
    trunk,
    prompt,
    runs,
    median: per(median),
    spread: per(spread),
    ids_as_expected: alike
      ? expected
        ? runs.every((run) => isPrefix(run.generated_ids, expected))
        : null
      : false,
  };
}

/** A run may have been asked for fewer or more tokens than are known: what both have must be the same. */
function isPrefix(found: readonly number[], expected: readonly number[]): boolean {
  const common = Math.min(found.length, expected.length);
  return common > 0 && found.slice(0, common).join() === expected.slice(0, common).join();
}

function compareWithOther(
  command: string,
  points: readonly BenchPoint[],
  theirs: readonly { ids: number[]; seconds: number }[],
): Against {
  const point = points[0]!;
  const ours = sample(point, "decode");
  const seconds = theirs.map((run) => run.seconds);
  const ids_equal = theirs.every(({ ids }) => isPrefix(point.runs[0]!.generated_ids, ids));
  const meaningful = ids_equal && point.ids_as_expected !== false && ours.length >= 3;
  return {
    command,
    seconds,
    ours,
    ids_equal,
    ratio: meaningful ? ratioInterval(ours, seconds, { noise: decodeNoise(points) }) : null,
  };
}

function headlines(
  points: readonly BenchPoint[],
  codecs: readonly CodecRatio[],
  against: Against | null,
  ok: boolean,
): string[] {
  const known = points.filter((point) => point.ids_as_expected !== null).length;
  return [
    ok
      ? known > 0
        ? "the generated ids are the expected ones in every run"
        : "every run of a point generated the same ids; nothing is known to compare them with"
      : points.some((point) => point.ids_as_expected === false)
        ? "WRONG IDS: a run of ours generated other ids than expected, so its speed means nothing"
        : "WRONG IDS: the other engine generated other ids than ours",
    noiseFloor({ points: [...points] }),
    ...(ok
      ? codecs.map(({ point, over, ratio }) => `${point}, decode over ${over}: ${describeRatio(ratio)}`)
      : []),
    ...(against ? [againstLine(against, points)] : []),
  ];
}

/** A ratio between engines that answer differently, or of a wrong answer, says nothing. */
function againstLine({ command, ids_equal, ratio }: Against, points: readonly BenchPoint[]): string {
  const which = points.length > 1 ? ` (${pointLabel(points[0]!, points)})` : "";
  if (points[0]!.ids_as_expected === false) return `${command}: no ratio: our ids are wrong`;
  if (!ids_equal) return `${command} generated other ids than ours: no ratio`;
  return ratio === null
    ? `${command}: no ratio: our runs ended before they decoded two tokens`
    : `ours${which} over ${command}: ${describeRatio(ratio)}`;
}
