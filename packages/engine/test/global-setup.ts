import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A directory for what several test files use; removed when all have run. */
export default async function setup(): Promise<() => Promise<void>> {
  const dir = await mkdtemp(join(tmpdir(), "k3-engine-"));
  process.env["K3_ENGINE_TEST_DIR"] = dir;
  return () => rm(dir, { recursive: true, force: true });
}
