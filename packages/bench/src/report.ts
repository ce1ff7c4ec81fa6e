import { formatBytes, formatSeconds } from "@k3/stage";
import { type Against, type BenchPoint, type BenchResult, PHASES, pointLabel } from "./bench-result.ts";
import { barChart, intervalChart, lineChart } from "./charts.ts";
import { describeRatio } from "./compare.ts";
import type { MeasuredRun } from "./run-protocol.ts";
import { median } from "./statistics.ts";

/** The table of points as Markdown, with what it was measured on. */
export function markdownReport(result: BenchResult): string {
  const { machine, model, versions, commit } = result.receipt;
  const rows = result.points.map((point) => {
    const cell = (phase: keyof BenchPoint["median"]) =>
      point.median[phase] === null
        ? "not measured"
        : `${time(point.median[phase])} ± ${percent(point.spread[phase]!)}`;
    const cells = [
      pointLabel(point, result.points),
      JSON.stringify(point.prompt),
      String(point.runs.length),
      ...PHASES.map(cell),
      ...BYTES.map(([, of]) => bytesOf(point.runs, of)),
      ...sharesAndPeak(point.runs),
      verdict(point),
    ];
    return `| ${cells.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
  });
  const head = ["point", "prompt", "runs", ...PHASES.map(words), ...BYTES.map(([name]) => name), ...TAIL];
  return [
    "# k3 bench",
    "",
    ...result.lines.map((line) => `- ${line}`),
    "",
    `| ${head.join(" | ")} |`,
    `| ${head.map(() => "---").join(" | ")} |`,
    ...rows,
    "",
    ...howReadsWereCounted(result).map((line) => `- ${line}`),
    "",
    ...(result.against
      ? [`Against \`${result.against.command}\`: ${against(result.against, result.points[0]!)}.`, ""]
      : []),
    `Measured on ${machine.cpu}, ${machine.threads} threads, ${formatBytes(machine.memory_bytes)}, ${machine.disk ?? "unknown disk"} with ${machine.filesystem ?? "unknown filesystem"}, ` +
      `Linux ${machine.kernel}, Node ${machine.node}, k3 ${versions["engine"]}${commit ? ` of commit ${commit}` : ""}. Model config ${model.config_sha256.slice(0, 12)}, commit ${model.dir_revision ?? "not known"}, ${model.layers} layers. ` +
      `Caches before each run: ${CACHES[result.cold]}.`,
    "",
  ].join("\n");
}

function against({ ids_equal, ratio }: Against, ours: BenchPoint): string {
  if (ours.ids_as_expected === false) return "our ids are WRONG, so there is no ratio";
  if (!ids_equal) return "the ids DIFFER, so there is no ratio";
  return ratio === null ? "no ratio, too few tokens" : `ours over theirs ${describeRatio(ratio)}, ids equal`;
}

const CACHES = {
  drop: "dropped (all of the machine's)",
  evict: "this model's files evicted by posix_fadvise",
  none: "left as they were (warm)",
};

const TAIL = ["expert bytes avoided", "CPU", "I/O wait", "peak RSS", "ids"];
const time = (seconds: number | null) => (seconds === null ? "not measured" : formatSeconds(seconds));
const words = (phase: string) => phase.replace("_", " ");

/** Bytes that had to be read, and what came from the device by each of the three accounts. */
const BYTES: readonly [string, (run: MeasuredRun) => number | null][] = [
  ["bytes owed", (run) => run.owed_bytes],
  ["read by the process", (run) => run.device_bytes],
  ["by its control group", (run) => run.cgroup_read_bytes],
  ["from the disk, by all", (run) => run.block_read_bytes],
];

/** The median of the runs, if it was counted in every one. */
function bytesOf(runs: readonly MeasuredRun[], of: (run: MeasuredRun) => number | null): string {
  const known = runs.map(of).filter((value) => value !== null);
  return known.length > 0 && known.length === runs.length
    ? formatBytes(Math.round(median(known)))
    : "not known";
}

const avoided = (runs: readonly MeasuredRun[]) =>
  `${bytesOf(runs, (run) => run.expert_bytes_avoided)} of ${bytesOf(runs, (run) => run.expert_bytes_requested)}`;

function howReadsWereCounted({ receipt, points }: BenchResult): string[] {
  const { block, disks, cgroup, missing } = receipt.accounts;
  const counts = (of: (run: MeasuredRun) => number | null) =>
    points.every(({ runs }) => runs.every((run) => of(run) !== null));
  return [
    "Read by the process: `read_bytes` of /proc/self/io, what the kernel fetched from a device for it.",
    ...(cgroup === null || disks.length === 0
      ? []
      : counts((run) => run.cgroup_read_bytes)
        ? [`By its control group: ${cgroup}, of the whole of ${disks.join(" and ")}.`]
        : [`By its control group: ${cgroup} had no account of ${disks.join(" and ")} after every run.`]),
    ...(block.length > 0
      ? [
          `From the disk, by all: the counter of ${block.map(({ name, device }) => `${name} (${device})`).join(" and ")}, with what others read meanwhile.`,
        ]
      : []),
    ...missing.map((line) => `Not known: ${line}.`),
  ];
}

function verdict(point: BenchPoint): string {
  if (point.ids_as_expected === null) return "same in all runs";
  return point.ids_as_expected ? "as expected" : "**WRONG**";
}

/** One self-contained page: no script, no font, no request; every chart beside the table it is drawn from. */
export function htmlReport(result: BenchResult): string {
  const one = (point: BenchPoint) => point.runs[Math.floor(point.runs.length / 2)]!;
  const short = (point: BenchPoint) => pointLabel(point, result.points);
  const decoded = result.points.filter(({ median }) => median.decode !== null);
  const charts = [
    barChart(
      "Seconds by phase (medians)",
      PHASES.map(words),
      result.points.map((point) => {
        return {
          label: short(point),
          values: PHASES.map((phase) => point.median[phase] ?? 0),
          text: point.median.decode === null ? "no decode" : `${time(point.median.decode)} a token`,
        };
      }),
    ),
    barChart(
      "Bytes per step by source (one run of the first point)",
      ["trunk", "head", "experts"],
      one(result.points[0]!).steps.map((step, index) => {
        const { trunk_bytes, head_bytes, expert_bytes } = step.read;
        return {
          label: `${index + 1}: ${step.phase}, ${step.tokens} tokens, ${formatSeconds(step.seconds)}`,
          values: [trunk_bytes, head_bytes, expert_bytes],
          text: formatBytes(trunk_bytes + head_bytes + expert_bytes),
        };
      }),
    ),
    lineChart(
      "Resident memory over time",
      result.points.map((point) => ({ name: short(point), points: one(point).memory })),
      { x: formatSeconds, y: formatBytes },
    ),
    ...(decoded.length > 1
      ? [
          barChart(
            "What budget, threads and codec buy: seconds per decoded token",
            ["decode"],
            decoded.map((point) => ({
              label: short(point),
              values: [point.median.decode!],
              text: time(point.median.decode),
            })),
          ),
        ]
      : []),
    ...(result.ok && result.codec_ratios.length > 0
      ? [
          intervalChart(
            `Decode over ${result.codec_ratios[0]!.over}`,
            result.codec_ratios.map(({ point, ratio }) => ({
              text: `${describeRatio(ratio)}: ${point}`,
              low: ratio.low,
              middle: ratio.ratio,
              high: ratio.high,
            })),
          ),
        ]
      : []),
    ...(result.against?.ratio
      ? [
          intervalChart("Ours over theirs", [
            {
              text: `${describeRatio(result.against.ratio)}: ${result.against.command}`,
              low: result.against.ratio.low,
              middle: result.against.ratio.ratio,
              high: result.against.ratio.high,
            },
          ]),
        ]
      : []),
  ];
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>k3 bench</title>
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:0 auto;padding:1rem;color:#222;background:#fff;overflow-wrap:anywhere}
svg{width:100%;max-width:34rem;height:auto;font:12px system-ui,sans-serif}svg .label{fill:#555}
figure{margin:1.5rem 0}figcaption{font-size:14px}figcaption span{display:inline-block;margin-right:.8rem;font-size:12px;color:#555}figcaption i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:.3rem .5rem;text-align:left;white-space:nowrap;overflow-wrap:normal}
.run{color:#555}.wrong{color:#b00020;font-weight:700}
</style></head><body>
<h1>k3 bench</h1>
<ul>${result.lines.map((line) => `<li>${escapeHtml(line)}</li>`).join("")}</ul>
${charts.join("\n")}
<h2>Every point and run</h2><div class="scroll">${table(result)}</div>
<ul>${howReadsWereCounted(result)
    .map((line) => `<li>${escapeHtml(line.replaceAll("`", ""))}</li>`)
    .join("")}</ul>
<h2>Made with</h2><div class="scroll"><table>${receiptRows(result)}</table></div>
</body></html>
`;
}

function table(result: BenchResult): string {
  const head = [
    "point",
    "prompt",
    "runs",
    ...PHASES.map(words),
    "spread",
    ...BYTES.map(([name]) => name),
    ...TAIL,
  ];
  const rows = result.points.flatMap((point) => {
    const cells = [
      pointLabel(point, result.points),
      point.prompt,
      String(point.runs.length),
      ...PHASES.map((phase) => time(point.median[phase])),
      point.spread.decode === null ? "" : percent(point.spread.decode),
      ...machineCells(point.runs),
    ];
    const wrong = point.ids_as_expected === false ? ' class="wrong"' : "";
    const runs = point.runs.map((run, index) => {
      return row(
        [
          `run ${index + 1}`,
          "",
          "",
          ...PHASES.map((phase) => time(run[phase])),
          "",
          ...machineCells([run]),
          run.generated_ids.join(" "),
        ],
        ' class="run"',
      );
    });
    const ids = `<td${wrong}>${escapeHtml(verdict(point).replaceAll("*", ""))}</td>`;
    return [row(cells).replace("</tr>", `${ids}</tr>`), ...runs];
  });
  return `<table><tr>${head.map((name) => `<th>${name}</th>`).join("")}</tr>${rows.join("")}</table>`;
}

const row = (cells: readonly string[], attributes = "") =>
  `<tr${attributes}>${cells.map((cell) => `<td>${escapeHtml(cell)}</td>`).join("")}</tr>`;

const percent = (value: number) => `${(100 * value).toFixed(0)} %`;

const machineCells = (runs: readonly MeasuredRun[]) => [
  ...BYTES.map(([, of]) => bytesOf(runs, of)),
  ...sharesAndPeak(runs),
];

function sharesAndPeak(runs: readonly MeasuredRun[]): string[] {
  const waits = runs.map((run) => run.io_wait_share).filter((value) => value !== null);
  return [
    avoided(runs),
    percent(median(runs.map((run) => run.cpu_share))),
    waits.length > 0 ? percent(median(waits)) : "not known",
    formatBytes(Math.max(...runs.map((run) => run.peak_rss_bytes))),
  ];
}

const trunkHashes = (points: readonly BenchPoint[]) =>
  Object.fromEntries(
    points.flatMap(({ trunk }) => (trunk ? [[`${trunk.dir}/trunk.json sha256`, trunk.manifest_sha256]] : [])),
  );

function receiptRows(result: BenchResult): string {
  const { machine, model, versions, commit, addon_sha256, options } = result.receipt;
  const facts: Record<string, unknown> = {
    ...machine,
    ...versions,
    "k3 commit": commit,
    "addon sha256": addon_sha256,
    "model config": model.config_sha256,
    "model commit": model.dir_revision,
    ...trunkHashes(result.points),
    "caches before each run": CACHES[result.cold],
    options: JSON.stringify(options),
  };
  return Object.entries(facts)
    .map(
      ([name, value]) =>
        `<tr><th>${escapeHtml(name.replaceAll("_", " "))}</th><td>${escapeHtml(String(value ?? "not known"))}</td></tr>`,
    )
    .join("");
}

const escapeHtml = (text: string) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
