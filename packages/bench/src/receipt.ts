import { execFile } from "node:child_process";
import { stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import type { Checkpoint } from "@k3/checkpoint";
import { nativeFile } from "@k3/engine";
import type { BenchPoint, RunReceipt } from "./bench-result.ts";
import { describeMachine } from "./machine.ts";
import { sha256Of } from "./matrix.ts";

/** What a result is made with, taken down when it is made. */
export async function runReceipt({
  checkpoint,
  modelDir,
  trunks,
  accounts,
  options,
}: Pick<RunReceipt, "accounts" | "options"> & {
  checkpoint: Checkpoint;
  modelDir: string;
  trunks: readonly BenchPoint["trunk"][];
}): Promise<RunReceipt> {
  const addon = nativeFile();
  return {
    versions: { engine: addon.version, node: process.version },
    commit: await sourceCommit(),
    addon_sha256: await sha256Of(addon.path),
    model: {
      dir_revision: checkpoint.revision,
      config_sha256: checkpoint.configSha256,
      layers: checkpoint.config.layers,
    },
    trunk_manifest_sha256: trunks.length === 1 ? (trunks[0]?.manifest_sha256 ?? null) : null,
    accounts,
    options,
    machine: await describeMachine(modelDir),
  };
}

/**
 * The commit that this code was built from, with `-dirty` behind it where files differ from it; null for an installed
 * package, which its version names: above it there may be a repository, but somebody else's.
 */
async function sourceCommit(): Promise<string | null> {
  const root = resolve(import.meta.dirname, "../../..");
  const ours = await stat(join(root, "packages/bench/package.json")).catch(() => undefined);
  if (!ours) return null;
  // No tag matches the empty pattern, so that the hash is what is left.
  const describe = ["-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--match="];
  return promisify(execFile)("git", describe).then(
    ({ stdout }) => stdout.trim(),
    () => null,
  );
}
