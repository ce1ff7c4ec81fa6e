import { stat } from "node:fs/promises";
import { join } from "node:path";
import { RELEASE } from "@k3/checkpoint";
import { readReceipt, readSnapshot, selectedFiles, shellWord } from "@k3/stage";
import { trunkCodec } from "./places.ts";

/** The step that comes next for a checkpoint and its trunk, as a command that can be pasted. */
export async function nextCommand(dir: string, trunkDir: string, holds: boolean): Promise<string> {
  const [model, trunk] = [shellWord(dir), shellWord(trunkDir)];
  if (!holds) return `k3 fetch ${RELEASE.repo} --revision ${RELEASE.revision} --dir ${model}`;
  const snapshot = await readSnapshot(dir).catch(() => undefined);
  if (snapshot) {
    const fetch = `k3 fetch ${shellWord(snapshot.repo)} --revision ${snapshot.revision} --dir ${model}`;
    for (const file of selectedFiles(snapshot))
      if (!(await stat(join(dir, file.path)).catch(() => undefined))) return fetch;
    const receipt = await readReceipt(dir).catch(() => undefined);
    if (!receipt) return `k3 verify ${model}`;
    if (receipt.damaged.length > 0) return `${fetch} --repair`;
  }
  if ((await trunkCodec(trunkDir)) === undefined) return `k3 pack ${model} ${trunk}`;
  return `k3 run ${model} --trunk ${trunk} --prompt 'The capital of France is' --generate 8`;
}
