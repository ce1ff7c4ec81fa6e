import { mkdir, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { pack } from "@k3/pack";
import { type Miniature, makeMiniature } from "@k3/testkit";

export interface PackedMiniature extends Miniature {
  /** Trunks by codec, in blocks small enough that every matrix spans several. */
  trunks: { bf16: string; none: string };
}

/** The miniature with two packed trunks, made by the first test file that asks. Read-only: others use it too. */
export async function packedMiniature(): Promise<PackedMiniature> {
  const root = process.env["K3_ENGINE_TEST_DIR"]!;
  const dir = join(root, "model");
  const trunks = { bf16: join(root, "bf16"), none: join(root, "none") };
  const first = await mkdir(join(root, "lock")).then(
    () => true,
    () => false,
  );
  if (first) {
    await makeMiniature(dir);
    await pack({ modelDir: dir, trunkDir: trunks.bf16, codec: "bf16", blockBytes: 8192 });
    await pack({ modelDir: dir, trunkDir: trunks.none, codec: "none", blockBytes: 4096 });
    await writeFile(join(root, "ready"), "");
  }
  const ready = () =>
    stat(join(root, "ready")).then(
      () => true,
      () => false,
    );
  for (let waited = 0; !(await ready()); waited += 50) {
    if (waited > 100_000) throw new Error("the test file that makes the miniature has failed");
    await setTimeout(50);
  }
  return { ...(await makeMiniature(dir)), trunks };
}
