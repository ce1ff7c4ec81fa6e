import { stat } from "node:fs/promises";
import { join } from "node:path";
import { RELEASE } from "@k3/checkpoint";
import {
  fileIdentity,
  type Receipt,
  readReceipt,
  readSnapshot,
  sameIdentity,
  selectedFiles,
  shellWord,
} from "@k3/stage";

/** The step that comes next for a checkpoint and its trunk, as a command that can be pasted. */
export async function nextCommand(
  dir: string,
  trunkDir: string,
  { holds, packed }: { holds: boolean; packed: boolean },
): Promise<string> {
  const [model, trunk] = [shellWord(dir), shellWord(trunkDir)];
  const snapshot = await readSnapshot(dir).catch(() => undefined);
  if (snapshot) {
    const fetch = `k3 fetch ${shellWord(snapshot.repo)} --revision ${snapshot.revision} --dir ${model}`;
    for (const file of selectedFiles(snapshot))
      if (!(await stat(join(dir, file.path)).catch(() => undefined))) return fetch;
    const receipt = await readReceipt(dir).catch(() => undefined);
    if (!receipt || (await changedSince(receipt, dir))) return `k3 verify ${model}`;
    if (receipt.damaged.length > 0) return `${fetch} --repair`;
  } else if (!holds) return `k3 fetch ${RELEASE.repo} --revision ${RELEASE.revision} --dir ${model}`;
  if (!packed) return `k3 pack ${model} ${trunk}`;
  return `k3 run ${model} --trunk ${trunk} --prompt 'The capital of France is' --generate 8`;
}

/** Whether a file is another one than was verified, or was touched since. */
async function changedSince(receipt: Receipt, dir: string): Promise<boolean> {
  for (const { path, identity } of receipt.files) {
    const found = await stat(join(dir, path), { bigint: true }).catch(() => undefined);
    if (!found || !sameIdentity(fileIdentity(found), identity)) return true;
  }
  return false;
}
