import { mkdtemp, realpath } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pack } from "@k3/pack";
import { makeMiniature } from "@k3/testkit";

/** The miniature and its trunk in a directory of their own, which is to be removed. */
export async function packedModel() {
  const dir = await realpath(await mkdtemp(join(tmpdir(), "k3-doctor-")));
  const [model, trunk] = [join(dir, "model"), join(dir, "packed")];
  await makeMiniature(model);
  const { stored_bytes } = await pack({ modelDir: model, trunkDir: trunk });
  return { dir, model, trunk, packedBytes: stored_bytes };
}

/** How doctor is asked where its figures do not matter, and no Hub answers. */
export const quick = { probeSeconds: 0.3, endpoint: "http://127.0.0.1:9" };
