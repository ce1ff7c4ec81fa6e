import { createRequire } from "node:module";
import {
  chooseEndpoint,
  findToken,
  HttpClient,
  HUB_TIMING,
  Hub,
  listSnapshot,
  RateGate,
  redact,
  requireRepoName,
} from "@k3/hub";
import type { SnapshotFile, StageOptions } from "@k3/stage";

const { version } = createRequire(import.meta.url)("../package.json") as { version: string };

/**
 * The files of a repository at a commit, with the hashes of their contents, all pages. Throws E_USAGE for a name or
 * endpoint that is none, E_HUB when the Hub refuses or its listing is malformed, unsafe or incomplete, E_NETWORK when it
 * cannot be reached.
 */
export async function listCommit(
  repo: string,
  revision: string,
  options: StageOptions & { endpoint?: string | undefined; token?: string | undefined },
): Promise<SnapshotFile[]> {
  requireRepoName(repo);
  const endpoint = chooseEndpoint(options.endpoint);
  const token = await findToken(options.token);
  const log = (level: "info" | "warn", text: string) =>
    options.onEvent?.({ type: "log", level, stage: "verify", message: redact(text, token) });
  const gate = new RateGate(HUB_TIMING, (bucket, ms) =>
    log("info", `rate limit of "${bucket}" reached: waiting ${Math.ceil(ms / 1000)} s`),
  );
  const client = new HttpClient(
    { client: `k3-verify/${version}`, endpoint, timing: HUB_TIMING },
    token,
    gate,
  );
  const reporter = { log, retried: (problem: string) => log("warn", problem) };
  const signal = options.signal ?? new AbortController().signal;
  try {
    const { files } = await listSnapshot(new Hub(client, HUB_TIMING, reporter, signal), repo, { revision });
    return files;
  } finally {
    await client.close();
  }
}
