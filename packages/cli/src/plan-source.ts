import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type PlanSource, planSourceOfDirectory, RELEASED_PLAN_SOURCE } from "@k3/bench";
import { RELEASE } from "@k3/checkpoint";
import { fetchSnapshot } from "@k3/fetch";
import { readSnapshot, StageError, type StageOptions } from "@k3/stage";

/**
 * What a plan is made for: the released model from its published figures, a directory, or another repository, of
 * which only config.json is fetched (into a temporary directory) beside the list of its files.
 */
export async function planSource(source: string | undefined, options: StageOptions): Promise<PlanSource> {
  if (source === undefined || source === RELEASE.repo) return RELEASED_PLAN_SOURCE;
  const path = /^[./~]/.test(source);
  if ((await stat(source).catch(() => undefined))?.isDirectory()) return planSourceOfDirectory(source);
  if (path)
    throw new StageError("E_DATA", `${source}: no such directory`, {
      hint: "give the directory of a checkpoint, or the NAMESPACE/NAME of a repository",
    });
  const dir = await mkdtemp(join(tmpdir(), "k3-plan-"));
  try {
    await fetchSnapshot({ ...options, repo: source, dir, include: ["config.json"] });
    const snapshot = await readSnapshot(dir);
    return {
      ...(await planSourceOfDirectory(dir)),
      // Only its config is there, and not for long.
      dir: null,
      downloadBytes: snapshot!.files.reduce((sum, file) => sum + file.size, 0),
    };
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}
