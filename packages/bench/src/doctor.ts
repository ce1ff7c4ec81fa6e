import { readFile, stat } from "node:fs/promises";
import { cpus, totalmem } from "node:os";
import { dirname, join, resolve } from "node:path";
import { byteArithmetic, RELEASE } from "@k3/checkpoint";
import { availableMemory, instructionSets } from "@k3/engine";
import {
  availableBytes,
  EXIT,
  type ExitCode,
  formatBytes,
  readReceipt,
  readSnapshot,
  type StageOptions,
  selectedFiles,
} from "@k3/stage";
import { CODEC_RATIO } from "./figures.ts";
import { type FilesystemFeatures, filesystemFeatures, LARGE_FILE } from "./filesystem.ts";
import { mountOf } from "./machine.ts";
import { type PlanSource, planSourceOfDirectory, RELEASED_PLAN_SOURCE } from "./plan.ts";
import { leastMemoryBytes } from "./predict.ts";
import { type DiskProbe, probeDisk } from "./probe.ts";

export interface Finding {
  level: "ok" | "warn" | "error";
  message: string;
  hint?: string;
}

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
  /** Empty where nothing can be measured: nothing to read, and nothing can be written. */
  disks: (DiskProbe & {
    path: string;
    filesystem: string | null;
    /** Null where nothing can be written. */
    features: FilesystemFeatures | null;
    free_bytes: number;
    summary: string;
  })[];
  findings: Finding[];
  next_command: string;
}

export interface DoctorOptions extends StageOptions {
  dir: string;
  probeSeconds?: number | undefined;
  endpoint?: string | undefined;
}

/**
 * What this machine can do for the model that `dir` holds (the released one if it holds none): processor, memory and
 * cgroup limits, the real rates of the disk (never a cached figure), space against need, whether the Hub answers, the
 * budget that fits, and the exact next command.
 */
export async function doctor({
  dir,
  probeSeconds = 5,
  endpoint,
  signal,
  onEvent,
}: DoctorOptions): Promise<DoctorResult> {
  const holds = (await stat(join(dir, "config.json")).catch(() => undefined)) !== undefined;
  const source = holds ? await planSourceOfDirectory(dir) : RELEASED_PLAN_SOURCE;
  const existing = await nearestExisting(dir);
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
  const least = leastMemoryBytes(source.config);
  const memory = {
    total_bytes: totalmem(),
    available_bytes: usable.bytes,
    limited_by: usable.limit,
    least_bytes: least,
  };
  findings.push(
    usable.bytes >= least
      ? {
          level: "ok",
          message: `${formatBytes(usable.bytes)} of memory can be used; the model runs from ${formatBytes(least)}`,
        }
      : {
          level: "error",
          message: `the model needs ${formatBytes(least)} (${least} bytes) of memory; ${formatBytes(usable.bytes)} (${usable.bytes} bytes) can be used`,
          hint:
            usable.limit !== "system"
              ? "raise the memory limit of this container"
              : "stop other programs, or take a larger machine",
        },
  );

  const free = await availableBytes(existing);
  findings.push(await spaceFinding(dir, source, free));
  const mount = await mountOf(existing);
  if (mount && /^(nfs|cifs|smb|fuse|9p|lustre)/.test(mount.type)) {
    findings.push({
      level: "warn",
      message: `${existing} is on ${mount.type}: locks and O_DIRECT may not work there`,
      hint: "use a local disk",
    });
  }
  const features = await filesystemFeatures(existing, { signal, onEvent });
  findings.push(...featureFindings(existing, mount?.type ?? "the filesystem", features, holds));
  const measurable = features !== null || source.file !== null;
  const probe = measurable
    ? await probeDisk(existing, { file: source.file ?? undefined, seconds: probeSeconds, signal, onEvent })
    : null;
  if (probe && !probe.direct) {
    findings.push({
      level: "warn",
      message: `${mount?.type ?? "this filesystem"} refuses O_DIRECT: rates are upper bounds, and reads are buffered`,
    });
  }
  findings.push(await hubFinding(endpoint, signal));

  const errors = findings.filter(({ level }) => level === "error");
  return {
    ok: errors.length === 0,
    exit: errors.length === 0 ? EXIT.ok : EXIT.resources,
    cpu,
    memory,
    disks: probe
      ? [
          {
            ...probe,
            path: existing,
            filesystem: mount?.type ?? null,
            features,
            free_bytes: free,
            summary: `${existing} (${mount?.type ?? "unknown filesystem"}): ${ratesOf(probe)}, ${formatBytes(free)} free`,
          },
        ]
      : [],
    findings,
    next_command: await nextCommand(dir, holds, errors.length === 0),
  };
}

const ratesOf = (probe: DiskProbe) =>
  (["sequential", "scattered", "mixed"] as const)
    .map((kind) => `${kind} ${formatBytes(probe[kind])}/s`)
    .join(", ");

async function nearestExisting(dir: string): Promise<string> {
  let path = resolve(dir);
  while (!(await stat(path).catch(() => undefined))?.isDirectory() && path !== dirname(path))
    path = dirname(path);
  return path;
}

async function spaceFinding(dir: string, source: PlanSource, free: number): Promise<Finding> {
  const sizes = byteArithmetic(source.config);
  const trunk = Math.round((sizes.trunkBytes + sizes.lmHeadBytes) * CODEC_RATIO.bf16);
  const snapshot = await readSnapshot(dir).catch(() => undefined);
  let present = 0;
  for (const file of snapshot ? selectedFiles(snapshot) : []) {
    present += (await stat(join(dir, file.path)).catch(() => undefined))?.size ?? 0;
  }
  const complete = snapshot === undefined && source !== RELEASED_PLAN_SOURCE;
  const needed = trunk + (complete ? 0 : Math.max(0, source.downloadBytes - present));
  if (free >= needed)
    return {
      level: "ok",
      message: `${formatBytes(free)} of disk free, ${formatBytes(needed)} needed for what is yet to come`,
    };
  return {
    level: "error",
    message: `${formatBytes(needed)} (${needed} bytes) of disk needed, ${formatBytes(free)} (${free} bytes) free`,
    hint: `take a disk with ${formatBytes(needed - free)} more, or another directory`,
  };
}

/** A checkpoint that is there already may have no file that a small limit would refuse. */
function featureFindings(
  dir: string,
  type: string,
  features: FilesystemFeatures | null,
  holds: boolean,
): Finding[] {
  if (features === null) {
    const hint = "a trunk has to go elsewhere: k3 pack MODEL_DIR TRUNK_DIR";
    return holds
      ? [{ level: "warn", message: `${dir} cannot be written`, hint }]
      : [{ level: "error", message: `${dir} cannot be written`, hint: "give a directory of yours" }];
  }
  const { large_files, holes, replaces } = features;
  const size = formatBytes(LARGE_FILE);
  const hint = "use ext4, XFS or another filesystem of Linux";
  const faults: Finding[] = [];
  if (large_files === null)
    faults.push({
      level: "warn",
      message: `whether ${type} takes files of ${size} could not be tried in ${dir}`,
      hint: "look for a full disk, a quota or errors of the disk, and ask again",
    });
  else if (!large_files)
    faults.push({ level: holds ? "warn" : "error", message: `${type} takes no files of ${size}`, hint });
  else if (!holes)
    faults.push({
      level: "warn",
      message: `${type} fills the holes of files: a download takes all its space at once`,
    });
  if (!replaces)
    faults.push({
      level: "error",
      message: `${type} does not replace a file in one step and sync its directory`,
      hint,
    });
  const fine = `${type} takes files of ${size}, leaves their holes empty and replaces files in one step`;
  return faults.length > 0 ? faults : [{ level: "ok", message: fine }];
}

async function hubFinding(endpoint: string | undefined, signal: AbortSignal | undefined): Promise<Finding> {
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
      level: "warn",
      message: `${url} does not answer (${why})`,
      hint: "a download will not work from here; check the network or HTTPS_PROXY",
    };
  }
}

/** The step that comes next for this directory, as a command that can be pasted. */
async function nextCommand(dir: string, holds: boolean, ok: boolean): Promise<string> {
  const quoted = /^[\w./-]+$/.test(dir) ? dir : `'${dir.replaceAll("'", "'\\''")}'`;
  if (!ok) return `k3 doctor ${quoted}`;
  if (!holds) return `k3 fetch ${RELEASE.repo} --revision ${RELEASE.revision} --dir ${quoted}`;
  const snapshot = await readSnapshot(dir).catch(() => undefined);
  const missing = snapshot
    ? (
        await Promise.all(
          selectedFiles(snapshot).map((file) => stat(join(dir, file.path)).catch(() => undefined)),
        )
      ).some((found) => !found)
    : false;
  if (snapshot && missing) return `k3 fetch ${snapshot.repo} --revision ${snapshot.revision} --dir ${quoted}`;
  const receipt = await readReceipt(dir).catch(() => undefined);
  if (snapshot && receipt && receipt.damaged.length > 0) {
    return `k3 fetch ${snapshot.repo} --revision ${snapshot.revision} --dir ${quoted} --repair`;
  }
  if (snapshot && !receipt) return `k3 verify ${quoted}`;
  const trunk = `${quoted.replace(/\/$/, "")}-trunk`;
  const packed = await readFile(join(`${dir.replace(/\/$/, "")}-trunk`, "trunk.json"), "utf8").catch(
    () => undefined,
  );
  if (packed === undefined) return `k3 pack ${quoted} ${trunk}`;
  return `k3 run ${quoted} --trunk ${trunk} --prompt 'The capital of France is' --generate 8`;
}
