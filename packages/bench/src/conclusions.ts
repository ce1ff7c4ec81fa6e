import type { OtherRun } from "./against.ts";
import {
  type Against,
  type BenchMedian,
  type BenchPoint,
  type CodecRatio,
  pointLabel,
} from "./bench-result.ts";
import { decodeNoise, describeRatio, noiseFloor, sample } from "./compare.ts";
import type { Point } from "./matrix.ts";
import { median, ratioInterval, spread } from "./statistics.ts";

/** What the runs of a point come to. */
export function pointOf({ request, trunk, prompt, expected, runs }: Point): BenchPoint {
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
    expected_ids: expected ? [...expected] : null,
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

/** Ours of the first point over theirs, if both answered right. */
export function compareWithOther(
  command: string,
  points: readonly BenchPoint[],
  theirs: readonly OtherRun[],
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

/** What a reader should know first. */
export function headlines(
  points: readonly BenchPoint[],
  codecs: readonly CodecRatio[],
  against: Against | null,
  { ok, resumed }: { ok: boolean; resumed: number },
): string[] {
  return [
    ok ? rightIds(points) : wrongIds(points),
    noiseFloor({ points: [...points] }),
    ...(ok
      ? codecs.map(({ point, over, ratio }) => `${point}, decode over ${over}: ${describeRatio(ratio)}`)
      : []),
    ...(against ? [againstLine(against, points)] : []),
    ...(resumed > 0
      ? [`runs that were measured before this bench was stopped and started again: ${resumed}`]
      : []),
  ];
}

function rightIds(points: readonly BenchPoint[]): string {
  const known = points.filter((point) => point.ids_as_expected !== null).length;
  if (known === 0)
    return "every run of a point generated the same ids; nothing is known to compare them with";
  if (known === points.length) return "the generated ids are the expected ones in every run";
  return `the generated ids are the expected ones in every run of ${known} of ${points.length} points; of the others nothing is known, and their runs generated the same`;
}

function wrongIds(points: readonly BenchPoint[]): string {
  const wrong = points.find((point) => point.ids_as_expected === false);
  if (!wrong) return "WRONG IDS: the other engine generated other ids than ours";
  const found = [...new Set(wrong.runs.map((run) => run.generated_ids.join()))].join(" and ");
  return `WRONG IDS: a run of ours generated other ids than expected, so its speed means nothing: ${found}, expected ${wrong.expected_ids?.join() ?? "the same in every run"}`;
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
