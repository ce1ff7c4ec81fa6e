import { stat } from "node:fs/promises";
import { cpus, totalmem } from "node:os";
import { join } from "node:path";
import { RELEASE } from "@k3/checkpoint";
import { availableMemory, instructionSets } from "@k3/engine";
import {
  EXIT,
  type ExitCode,
  formatBytes,
  readSnapshot,
  StageError,
  type StageOptions,
  shellWord,
} from "@k3/stage";
import { disksOf, examineDisk, type MeasuredDisk } from "./disks.ts";
import type { Finding } from "./findings.ts";
import { nextCommand } from "./next-command.ts";
import { checkpointPlace, trunkPlace, usualTrunkDirectory } from "./places.ts";
import {
  type PlanSource,
  planSourceOfDirectory,
  planSourceOfSnapshot,
  RELEASED_PLAN_SOURCE,
  scratchBytesFor,
} from "./plan.ts";
import { leastMemoryBytes, type Prediction, predict } from "./predict.ts";

export interface DoctorResult {
  /** Whether the pipeline could run here. */
  ok: boolean;
  exit: ExitCode;
  cpu: { model: string; threads: number; isa: string };
  memory: {
    total_bytes: number;
    available_bytes: number;
    limited_by: "system" | "cgroup-v1" | "cgroup-v2";
    least_bytes: number;
  };
  /** Each disk that checkpoint and trunk lie on or will; without those where nothing can be measured. */
  disks: MeasuredDisk[];
  /** What `--memory auto` would take and what it brings here; null where the model cannot run or a disk has no rates. */
  budget:
    | ({ bytes: number } & Pick<
        Prediction,
        | "pinned_trunk_bytes"
        | "expert_cache_bytes"
        | "read_bytes_per_token"
        | "first_token_seconds"
        | "token_seconds"
        | "bound"
      >)
    | null;
  findings: Finding[];
  next_command: string;
}

export interface DoctorOptions extends StageOptions {
  /** Where the checkpoint is or will be. */
  dir: string;
  /** Where the packed trunk is or will be. Default: beside `dir`; `dir`/trunk where `dir` is the root of a disk. */
  trunkDir?: string | undefined;
  /** How long to measure each disk. Default 5. */
  probeSeconds?: number | undefined;
  endpoint?: string | undefined;
}

/**
 * What this machine can do for the model that `dir` holds (the released one if it holds none): processor, memory and
 * cgroup limits, the real rates of each disk (never a cached figure), space against need, whether the Hub answers, the
 * budget that fits, and the exact next command.
 */
export async function doctor(options: DoctorOptions): Promise<DoctorResult> {
  const { dir, probeSeconds = 5, endpoint, signal, onEvent } = options;
  const trunkDir = options.trunkDir ?? (await usualTrunkDirectory(dir));
  for (const given of [dir, trunkDir]) await requireDirectory(given);
  const holds = (await stat(join(dir, "config.json")).catch(() => undefined)) !== undefined;
  const snapshot = await readSnapshot(dir);
  const source = holds
    ? await planSourceOfDirectory(dir)
    : snapshot
      ? planSourceOfSnapshot(dir, snapshot)
      : RELEASED_PLAN_SOURCE;
  const findings: Finding[] = [];

  const isa = instructionSets();
  const cpu = { model: cpus()[0]?.model.trim() ?? "unknown", threads: cpus().length, isa: isa.join(", ") };
  if (isa.every((name) => name === "scalar")) {
    findings.push({
      level: "warn",
      message: "this processor has neither AVX2 nor NEON: the engine computes with scalar code",
      hint: "expect it to be ten times slower",
    });
  }

  const usable = availableMemory();
  const memory = {
    total_bytes: totalmem(),
    available_bytes: usable.bytes,
    limited_by: usable.limit,
    least_bytes: leastMemoryBytes(source.config),
  };
  findings.push(memoryFinding(memory));

  const checkpoint = await checkpointPlace(dir, source);
  const trunk = await trunkPlace(trunkDir, source);
  const disks: MeasuredDisk[] = [];
  let unmeasured = 0;
  for (const disk of await disksOf([checkpoint, trunk])) {
    const scratchBytes = scratchBytesFor(source);
    const examined = await examineDisk(disk, { seconds: probeSeconds, scratchBytes, signal, onEvent });
    findings.push(...examined.findings);
    if (examined.measured) disks.push(examined.measured);
    else unmeasured++;
  }
  if (trunk.fault) findings.push({ level: "error", ...trunk.fault });
  if (holds && !snapshot) findings.push(unprovenFinding(dir, source));
  findings.push(await hubFinding(endpoint, checkpoint.neededBytes > 0, signal));

  const ok = findings.every(({ level }) => level !== "error");
  return {
    ok,
    exit: ok ? EXIT.ok : EXIT.resources,
    cpu,
    memory,
    disks,
    budget: unmeasured > 0 ? null : budgetOf(source, memory, disks, trunk.codec ?? "bf16"),
    findings,
    next_command: ok
      ? await nextCommand(dir, trunkDir, { holds, packed: trunk.codec !== undefined })
      : sameAgain(options),
  };
}

function memoryFinding({ available_bytes, least_bytes, limited_by }: DoctorResult["memory"]): Finding {
  const [usable, least] = [formatBytes(available_bytes), formatBytes(least_bytes)];
  if (available_bytes >= least_bytes)
    return { level: "ok", message: `${usable} of memory can be used; the model runs from ${least}` };
  return {
    level: "error",
    message: `the model needs ${least} (${least_bytes} bytes) of memory; ${usable} (${available_bytes} bytes) can be used`,
    hint:
      limited_by === "system"
        ? "stop other programs, or take a larger machine"
        : "raise the memory limit of this container",
  };
}

/** Of several disks that hold the same part the slowest counts. */
function budgetOf(
  source: PlanSource,
  { available_bytes: bytes, least_bytes }: DoctorResult["memory"],
  disks: readonly MeasuredDisk[],
  codec: "bf16" | "none",
): DoctorResult["budget"] {
  if (bytes < least_bytes) return null;
  const rateOf = (part: MeasuredDisk["holds"][number], alone: "sequential" | "scattered") =>
    Math.min(
      ...disks
        .filter(({ holds }) => holds.includes(part))
        .map((disk) => (disk.holds.length > 1 ? disk.mixed : disk[alone])),
    );
  const { owed_bytes_per_token, ...prediction } = predict({
    config: source.config,
    codec,
    weightBytes: bytes - least_bytes,
    diskBytesPerSecond: rateOf("trunk", "sequential"),
    expertDiskBytesPerSecond: rateOf("checkpoint", "scattered"),
    threads: cpus().length,
    promptTokens: 5,
  });
  return { bytes, ...prediction };
}

/** A checkpoint that no manifest belongs to: made by hand, or copied without k3's own files. */
const unprovenFinding = (dir: string, { config }: PlanSource): Finding => ({
  level: "warn",
  message: `${dir} has no manifest: nobody has compared its bytes with published hashes`,
  hint: `k3 verify ${shellWord(dir)} --repo ${isReleased(config) ? `${RELEASE.repo} --revision ${RELEASE.revision}` : "NAME --revision COMMIT"} does`,
});

const isReleased = (config: PlanSource["config"]) =>
  JSON.stringify(config) === JSON.stringify(RELEASED_PLAN_SOURCE.config);

/** One that is not there yet will be made. */
async function requireDirectory(path: string): Promise<void> {
  const found = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
    throw new StageError("E_USAGE", `${path} cannot be looked at: ${error.message}`, { cause: error });
  });
  if (found && !found.isDirectory())
    throw new StageError("E_USAGE", `${path} is a file`, { hint: "give a directory" });
}

/** While something is yet to be downloaded, the pipeline cannot run without it. */
async function hubFinding(
  endpoint: string | undefined,
  needed: boolean,
  signal: AbortSignal | undefined,
): Promise<Finding> {
  const url = endpoint ?? process.env["HF_ENDPOINT"] ?? "https://huggingface.co";
  const timeout = AbortSignal.timeout(5000);
  try {
    await fetch(`${url.replace(/\/$/, "")}/api/models/${RELEASE.repo}/revision/${RELEASE.revision}`, {
      method: "HEAD",
      redirect: "manual",
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    return { level: "ok", message: `${url} answers` };
  } catch (error) {
    const why = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error);
    return {
      level: needed ? "error" : "warn",
      message: `${url} does not answer (${why})`,
      hint: "a download will not work from here; check the network or HTTPS_PROXY",
    };
  }
}

/** For when what is in the way is out of it. */
const sameAgain = ({ dir, trunkDir }: DoctorOptions) =>
  `k3 doctor ${shellWord(dir)}${trunkDir === undefined ? "" : ` --trunk ${shellWord(trunkDir)}`}`;
