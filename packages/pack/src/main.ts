import { parseArgs } from "node:util";
import {
  EXIT,
  formatBytes,
  formatSeconds,
  type ProgressEvent,
  StageError,
  type StageEvent,
  toStageError,
} from "@k3/stage";
import { type PackResult, pack } from "./pack.ts";

const USAGE = `k3-pack MODEL_DIR TRUNK_DIR [--codec bf16|none] [--check] [--threads N] [--dry-run] [--json]

Packs the dense weights of a Kimi K3 checkpoint into a trunk. Run it again to continue after an interruption.`;

/** What the program writes to; the process's own streams by default. */
export interface Output {
  stdout(text: string): void;
  stderr(text: string): void;
  /** Whether stderr is a terminal, where a progress line can be overwritten. */
  live: boolean;
}

const PROCESS_OUTPUT: Output = {
  stdout: (text) => process.stdout.write(text),
  stderr: (text) => process.stderr.write(text),
  live: process.stderr.isTTY ?? false,
};

/** The `k3-pack` command. Gives the exit code; SIGINT, SIGTERM and SIGHUP stop at a safe point and give 130, a second one ends at once. */
export async function main(argv: string[], out: Output = PROCESS_OUTPUT): Promise<number> {
  const json = argv.includes("--json");
  const abort = new AbortController();
  const stop = () => {
    if (abort.signal.aborted) process.exit(EXIT.interrupted);
    abort.abort();
  };
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const signal of signals) process.on(signal, stop);
  try {
    const options = parse(argv);
    if (!options) {
      out.stdout(`${USAGE}\n`);
      return EXIT.ok;
    }
    const show = json ? (event: StageEvent) => out.stdout(`${JSON.stringify(event)}\n`) : humanEvents(out);
    const result = await pack({ ...options, signal: abort.signal, onEvent: show });
    if (json) out.stdout(`${JSON.stringify({ type: "result", command: "pack", ...result })}\n`);
    else out.stdout(`${out.live ? "\n" : ""}${describe(result)}\n`);
    return EXIT.ok;
  } catch (thrown) {
    const error = toStageError(thrown);
    const { code, exit, message, hint } = error;
    if (json) out.stdout(`${JSON.stringify({ type: "error", code, exit, message, hint })}\n`);
    else out.stderr(`${out.live ? "\n" : ""}${message}\n${hint ? `${hint}\n` : ""}`);
    return exit;
  } finally {
    for (const signal of signals) process.off(signal, stop);
  }
}

function parse(argv: string[]) {
  try {
    const { values, positionals } = parseArgs({
      args: argv,
      allowPositionals: true,
      options: {
        codec: { type: "string" },
        check: { type: "boolean" },
        threads: { type: "string" },
        "dry-run": { type: "boolean" },
        json: { type: "boolean" },
        help: { type: "boolean", short: "h" },
      },
    });
    if (values.help) return undefined;
    const [modelDir, trunkDir, ...more] = positionals;
    if (!modelDir || !trunkDir || more.length > 0)
      throw new Error("give a model directory and a trunk directory");
    const { codec, threads } = values;
    if (codec !== undefined && codec !== "bf16" && codec !== "none")
      throw new Error(`there is no codec "${codec}"`);
    return {
      modelDir,
      trunkDir,
      codec,
      threads: threads === undefined ? undefined : Number(threads),
      check: values.check,
      dryRun: values["dry-run"],
    } as const;
  } catch (error) {
    throw new StageError("E_USAGE", (error as Error).message, { hint: USAGE });
  }
}

/** One line that is overwritten on a terminal; a line every five seconds elsewhere. */
function humanEvents(out: Output): (event: StageEvent) => void {
  let last = Number.NEGATIVE_INFINITY;
  return (event) => {
    if (event.type === "log") {
      out.stderr(`${out.live ? "\r\x1b[K" : ""}${event.message}\n`);
    } else if (out.live) {
      out.stderr(`\r\x1b[K${progressLine(event)}`);
    } else if (performance.now() - last >= 5000) {
      last = performance.now();
      out.stderr(`${progressLine(event)}\n`);
    }
  };
}

function progressLine({ phase, done, total, rate, etaSeconds, unit }: ProgressEvent): string {
  const amount = (n: number) => (unit === "bytes" ? formatBytes(n) : `${n} ${unit}`);
  const of = total === null ? "" : ` of ${amount(total)}`;
  const speed = rate === null ? "" : `, ${amount(rate)}/s`;
  const eta = etaSeconds === null ? "" : `, ${formatSeconds(etaSeconds)} to go`;
  return `${phase}: ${amount(done)}${of}${speed}${eta}`;
}

function describe(result: PackResult): string {
  const { source_bytes, stored_bytes, seconds, trunk_dir, dry_run, resumed_blocks, blocks, checked } = result;
  const sizes = `${formatBytes(source_bytes)} -> ${formatBytes(stored_bytes)} (${(stored_bytes / source_bytes).toFixed(3)})`;
  if (dry_run) {
    const fits = dry_run.fits ? "they fit" : "they do NOT fit";
    return (
      `${trunk_dir}: would pack ${sizes} in about ${formatSeconds(seconds)} at ` +
      `${formatBytes(dry_run.pack_bytes_per_second)}/s (reading alone ${formatBytes(dry_run.read_bytes_per_second)}/s); ` +
      `${formatBytes(dry_run.free_bytes)} are free: ${fits}`
    );
  }
  const resumed = resumed_blocks > 0 ? `, ${resumed_blocks} of ${blocks} blocks were there already` : "";
  return `${trunk_dir}: ${sizes} in ${formatSeconds(seconds)}${resumed}${checked ? ", equal to the checkpoint" : ""}`;
}
