import { stat } from "node:fs/promises";
import { StageError, throwIfAborted, toStageError } from "@k3/stage";
import { loadExpected, withoutManifest } from "./expected.ts";
import { checkedJobs } from "./hashes.ts";
import { VerifyRun } from "./run.ts";
import type { VerifyOptions, VerifyResult } from "./types.ts";

const LEVELS = ["sizes", "structure", "hashes"] as const;

/**
 * Verifies a model directory to a level and gives every fault at once (`ok` is then false; the command line exits 3).
 * Sizes come first and are reported before a byte is hashed; files of the wrong size are not hashed. After a clean pass
 * over all hashes the receipt is written. Never changes anything outside `.cache/k3`.
 *
 * Throws E_USAGE for options that contradict each other or ask for more than is known of the directory, E_CONFIG for a
 * config.json that has its published content and is not one of K3, E_DATA for a missing directory or a damaged manifest,
 * E_HUB and E_NETWORK when the listing cannot be had, E_LOCKED, E_INTERRUPTED (finished hashes are kept).
 */
export async function verify(options: VerifyOptions): Promise<VerifyResult> {
  try {
    return await verifyDirectory(options);
  } catch (error) {
    throw toStageError(error);
  }
}

async function verifyDirectory(options: VerifyOptions): Promise<VerifyResult> {
  const started = performance.now();
  const { dir, level = "hashes", signal, sinceReceipt = false } = options;
  const jobs = checkedJobs(options.jobs ?? 1);
  if (!LEVELS.includes(level))
    throw new StageError("E_USAGE", `${level} is no level: use ${LEVELS.join(", ")}`);
  if (sinceReceipt && level !== "hashes") {
    throw new StageError("E_USAGE", "what changed since the receipt shows in the hashes only", {
      hint: "leave out --level",
    });
  }
  await requireDirectory(dir);
  throwIfAborted(signal);
  const expected = await loadExpected(options);
  const run = new VerifyRun(options, expected);
  if (!expected) {
    if (level !== "structure" || sinceReceipt || options.failOnExtra) {
      const what =
        options.failOnExtra && level === "structure" ? "surplus files" : sinceReceipt ? "damage" : level;
      throw new StageError(
        "E_USAGE",
        `${dir} has no snapshot manifest, so ${what} cannot be verified: structure is the most that can`,
        { hint: await withoutManifest(dir) },
      );
    }
    await run.structure(false);
  } else {
    await run.sizes(expected);
    if (level === "structure") await run.listedStructure(expected);
    if (level === "hashes") await run.hashes(expected, jobs);
  }
  const { faults } = run;
  const ok = faults.length === 0;
  return {
    ok,
    complete: run.complete,
    level,
    repo: expected?.repo ?? null,
    revision: expected?.revision ?? null,
    checked: run.checked,
    bytes: run.bytes,
    bytes_read: run.bytesRead,
    direct: run.direct,
    from_journal: run.fromJournal,
    faults,
    extra: run.extra,
    seconds: (performance.now() - started) / 1000,
  };
}

async function requireDirectory(dir: string): Promise<void> {
  const found = await stat(dir).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT" || error.code === "ENOTDIR") return undefined;
    throw error;
  });
  if (!found?.isDirectory()) throw new StageError("E_DATA", `${dir}: no such directory`);
}
