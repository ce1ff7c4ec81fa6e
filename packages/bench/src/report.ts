import { formatBytes, formatSeconds } from "@k3/stage";
import type { BenchPoint, BenchResult } from "./bench-result.ts";
import { barChart, intervalChart, lineChart } from "./charts.ts";
import { describeRatio } from "./compare.ts";

const short = (point: BenchPoint) =>
  `${formatBytes(point.memory_bytes)}, ${point.threads} threads, ${point.codec ?? "none"}`;

/** The table of points as Markdown, with what it was measured on. */
export function markdownReport(result: BenchResult): string {
  const { machine, model } = result.receipt;
  const rows = result.points.map((point) => {
    const { median, spread } = point;
    const cell = (phase: keyof typeof median) =>
      `${formatSeconds(median[phase])} ± ${(100 * spread[phase]).toFixed(0)} %`;
    const run = point.runs[0]!;
    return (
      `| ${short(point)} | ${JSON.stringify(point.prompt)} | ${point.runs.length} | ${cell("open")} | ${cell("cold_step")} | ${cell("prefill")} | ` +
      `${cell("first_decode")} | ${cell("decode")} | ${formatBytes(run.owed_bytes)} | ${run.device_bytes === null ? "not known" : formatBytes(run.device_bytes)} | ` +
      `${formatBytes(run.expert_bytes_avoided)} of ${formatBytes(run.expert_bytes_requested)} | ${formatBytes(Math.max(...point.runs.map((one) => one.peak_rss_bytes)))} | ${verdict(point)} |`
    );
  });
  return [
    "# k3 bench",
    "",
    ...result.lines.map((line) => `- ${line}`),
    "",
    "| budget | prompt | runs | open | cold step | prefill | first decode | decode | bytes owed | read from the device | expert bytes avoided | peak RSS | ids |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ...rows,
    "",
    ...(result.against
      ? [
          `Against \`${result.against.command}\`: ${result.against.ids_equal ? `ours over theirs ${describeRatio(result.against.ratio)}, ids equal` : "the ids DIFFER, so there is no ratio"}.`,
          "",
        ]
      : []),
    `Measured on ${machine.cpu}, ${machine.threads} threads, ${formatBytes(machine.memory_bytes)}, ${machine.disk ?? "unknown disk"} with ${machine.filesystem ?? "unknown filesystem"}, ` +
      `Linux ${machine.kernel}, Node ${machine.node}. Model config ${model.config_sha256.slice(0, 12)}, commit ${model.dir_revision ?? "not known"}, ${model.layers} layers. ` +
      `Caches before each run: ${CACHES[result.cold]}.`,
    "",
  ].join("\n");
}

const CACHES = {
  drop: "dropped (all of the machine's)",
  evict: "this model's files evicted by posix_fadvise",
  none: "left as they were (warm)",
};

function verdict(point: BenchPoint): string {
  if (point.ids_as_expected === null) return "same in all runs";
  return point.ids_as_expected ? "as expected" : "**WRONG**";
}

/** One self-contained page: no script, no font, no request; every chart beside the table it is drawn from. */
export function htmlReport(result: BenchResult): string {
  const median = (point: BenchPoint) => point.runs[Math.floor(point.runs.length / 2)]!;
  const charts = [
    barChart(
      "Seconds by phase (medians)",
      ["open", "cold step", "prefill", "first decode", "decode"],
      result.points.map((point) => {
        const { open, cold_step, prefill, first_decode, decode } = point.median;
        return {
          label: short(point),
          values: [open, cold_step, prefill, first_decode, decode],
          text: `${formatSeconds(decode)} a token`,
        };
      }),
    ),
    barChart(
      "Bytes per step by source (one run of the first point)",
      ["trunk", "head", "experts"],
      median(result.points[0]!).steps.map((step, index) => {
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
      result.points.map((point) => ({ name: short(point), points: median(point).memory })),
      { x: formatSeconds, y: formatBytes },
    ),
    ...(result.points.length > 1
      ? [
          barChart(
            "What a budget buys: seconds per decoded token",
            ["decode"],
            result.points.map((point) => ({
              label: short(point),
              values: [point.median.decode],
              text: formatSeconds(point.median.decode),
            })),
          ),
        ]
      : []),
    ...(result.against?.ids_equal
      ? [
          intervalChart("Ours over theirs", [
            {
              label: result.against.command,
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
body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:0 auto;padding:1rem;color:#222;background:#fff}
svg{width:100%;max-width:34rem;height:auto;font:12px system-ui,sans-serif}svg .title{font-size:14px;font-weight:600}svg .label{fill:#555}
figure{margin:1.5rem 0}.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:.3rem .5rem;text-align:left;white-space:nowrap}
.wrong{color:#b00020;font-weight:700}
</style></head><body>
<h1>k3 bench</h1>
<ul>${result.lines.map((line) => `<li>${escapeHtml(line)}</li>`).join("")}</ul>
${charts.join("\n")}
<h2>Every point</h2><div class="scroll">${table(result)}</div>
<h2>Made with</h2><div class="scroll"><table>${receiptRows(result)}</table></div>
</body></html>
`;
}

function table(result: BenchResult): string {
  const head = [
    "budget",
    "prompt",
    "runs",
    "open",
    "cold step",
    "prefill",
    "first decode",
    "decode",
    "spread",
    "bytes owed",
    "from device",
    "expert bytes avoided",
    "CPU",
    "I/O wait",
    "peak RSS",
    "ids",
  ];
  const percent = (value: number | null) => (value === null ? "not known" : `${(100 * value).toFixed(0)} %`);
  const rows = result.points.map((point) => {
    const run = point.runs[0]!;
    const cells = [
      short(point),
      point.prompt,
      String(point.runs.length),
      ...(["open", "cold_step", "prefill", "first_decode", "decode"] as const).map((phase) =>
        formatSeconds(point.median[phase]),
      ),
      percent(point.spread.decode),
      formatBytes(run.owed_bytes),
      run.device_bytes === null ? "not known" : formatBytes(run.device_bytes),
      `${formatBytes(run.expert_bytes_avoided)} of ${formatBytes(run.expert_bytes_requested)}`,
      percent(run.cpu_share),
      percent(run.io_wait_share),
      formatBytes(Math.max(...point.runs.map((one) => one.peak_rss_bytes))),
    ];
    const wrong = point.ids_as_expected === false ? ' class="wrong"' : "";
    return `<tr>${cells.map((cell) => `<td>${escapeHtml(cell)}</td>`).join("")}<td${wrong}>${escapeHtml(verdict(point).replaceAll("*", ""))}</td></tr>`;
  });
  return `<table><tr>${head.map((name) => `<th>${name}</th>`).join("")}</tr>${rows.join("")}</table>`;
}

function receiptRows(result: BenchResult): string {
  const { machine, model, versions, addon_sha256, trunk_manifest_sha256, options } = result.receipt;
  const facts: Record<string, unknown> = {
    ...machine,
    ...versions,
    "addon sha256": addon_sha256,
    "model config": model.config_sha256,
    commit: model.dir_revision,
    "trunk.json sha256": trunk_manifest_sha256,
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
