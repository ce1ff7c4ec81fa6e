import { stat } from "node:fs/promises";
import { fileIdentity, StageError, sameIdentity } from "@k3/stage";
import type { PackPlan } from "./plan.ts";

/** Throws E_DATA when a shard is no longer the file that it was when packing began. */
export async function requireUnchanged(plan: PackPlan): Promise<void> {
  const changed: string[] = [];
  for (const [s, path] of plan.shards.entries()) {
    const now = await stat(path, { bigint: true }).catch(() => undefined);
    if (!now || !sameIdentity(fileIdentity(now), plan.identities[s]!)) changed.push(path);
  }
  if (changed.length === 0) return;
  throw new StageError("E_DATA", `written to while it was packed: ${changed.join(", ")}`, {
    hint: "verify the checkpoint and pack it again",
    details: { changed },
  });
}
