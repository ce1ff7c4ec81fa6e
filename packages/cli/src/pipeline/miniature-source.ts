import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { StageOptions } from "@k3/stage";
import { makeMiniature, serveDirectory } from "@k3/testkit";

export interface Served {
  endpoint: string;
  repo: string;
  revision: string;
  close(): Promise<void>;
}

/** Makes the miniature in DIR/source unless it is there, and serves it by a loopback Hub with the real protocol. */
export async function serveMiniature(dir: string, { signal, onEvent }: StageOptions): Promise<Served> {
  const source = join(dir, "source");
  // makeMiniature writes config.json last, so a miniature that was interrupted is made again.
  if (!(await stat(join(source, "config.json")).catch(() => undefined))) {
    await makeMiniature(source, { signal, onEvent });
  }
  const hub = await serveDirectory(source, { signal, onEvent });
  return { endpoint: hub.endpoint, repo: hub.repo, revision: hub.commit, close: () => hub.close() };
}
