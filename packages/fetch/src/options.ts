import type { LookupFunction } from "node:net";
import { chooseEndpoint, HUB_TIMING, type HubTiming, requireRepoName } from "@k3/hub";
import { CHUNK_BYTES, StageError, type StageOptions } from "@k3/stage";

export interface FetchOptions extends StageOptions {
  /** `namespace/name` of a model repository. */
  repo: string;
  /** A commit, branch or tag; it is resolved to a commit once. Default "main". */
  revision?: string | undefined;
  /** The directory that is to hold the files; it is made when it does not exist. */
  dir: string;
  /** Connections for file bodies, 1 to 16. Default 8. Fewer are used while the disk is the bottleneck. */
  concurrency?: number | undefined;
  /** Most bytes per second over all connections. */
  limitRate?: number | undefined;
  /** The Hub or a mirror of it. Default `HF_ENDPOINT`, else https://huggingface.co. */
  endpoint?: string | undefined;
  /** Access token; default `HF_TOKEN` or the login file; "" for none. Sent to the endpoint's origin only. */
  token?: string | undefined;
  /** Hosts that may serve bodies for the default endpoint, beside the known ones. */
  cdnHosts?: readonly string[] | undefined;
  /** Glob patterns as `hf download` takes them (`*` crosses `/`): only files that match one are wanted. */
  include?: readonly string[] | undefined;
  /** Files that match one of these are not wanted. */
  exclude?: readonly string[] | undefined;
  /** Files that match one of these are downloaded before all others. */
  first?: readonly string[] | undefined;
  /** Only re-fetch the damaged 64 MiB chunks that the directory's verification receipt names. */
  repair?: boolean | undefined;
  /** Continue partial files that an interrupted `hf download --local-dir` left. */
  adoptPartials?: boolean | undefined;
  /** Allow the directory, which holds another commit, to be moved to this one. */
  switchRevision?: boolean | undefined;
  /** For tests: shorter times, smaller segments. */
  internals?: Partial<Internals> | undefined;
}

export interface FetchResult {
  repo: string;
  /** The commit that the directory now holds, 40 hex digits. */
  revision: string;
  dir: string;
  /** Files asked for, all of which are present. */
  files: number;
  /** Their bytes. */
  bytes: number;
  /** Payload bytes received from the network by this call. */
  downloaded_bytes: number;
  /** Bytes that were on the disk already: finished files, and what the journals of unfinished ones vouched for. */
  resumed_bytes: number;
  seconds: number;
  /** True when every file asked for was hashed, now or (unchanged since) before, and the hash is the published one. */
  verified: boolean;
}

/** Times in milliseconds, and the numbers that bound retries. */
export interface Timing extends HubTiming {
  /** A body that brings fewer than `stallBytes` in this time, while we are ready to take more, is given up. */
  stall: number;
  /** The same in the last twentieth of the job, where one hanging connection holds up everything. */
  tailStall: number;
  stallBytes: number;
  /** Failed attempts without `progressBytes` of progress after which a file is put to the end of the queue. */
  attempts: number;
  progressBytes: number;
  /** The run fails when no new byte came for this long although some were wanted. */
  giveUp: number;
  /** A signed URL is renewed this long before it expires, at most a quarter of its life. */
  refreshMargin: number;
  /** Waits before a signed URL that was refused is renewed, one after the other while no byte comes; then the run fails. */
  refreshWaits: readonly number[];
  /** What was received of unfinished segments is made durable when nothing was for this long. */
  checkpoint: number;
  /** Width of the window over which the share of time spent waiting for the disk is measured. */
  adapt: number;
  progress: number;
}

const TIMING: Timing = {
  ...HUB_TIMING,
  tailStall: 10_000,
  stallBytes: 64 * 1024,
  attempts: 10,
  progressBytes: 1024 * 1024,
  refreshMargin: 300_000,
  refreshWaits: [1000, 10_000, 60_000],
  checkpoint: 15_000,
  adapt: 5000,
  progress: 250,
};

interface Internals {
  timing: Partial<Timing>;
  /** Bytes of a range request and of a journal record. */
  segmentBytes: number;
  /** Files below this are "small": downloaded first and not counted as open shards. */
  smallBytes: number;
  /** False: go without the lock of the directory (as where flock does nothing); the journals' owners remain. */
  lock: boolean;
  lookup: LookupFunction;
}

/** The options with every default filled in. */
export interface Settings {
  repo: string;
  revision: string;
  dir: string;
  concurrency: number;
  limitRate: number | undefined;
  endpoint: string;
  cdnHosts: readonly string[];
  include: readonly string[];
  exclude: readonly string[];
  first: readonly string[];
  repair: boolean;
  adoptPartials: boolean;
  switchRevision: boolean;
  timing: Timing;
  segmentBytes: number;
  smallBytes: number;
  lock: boolean;
  lookup: LookupFunction | undefined;
}

/** Checks the options and fills in the defaults. Throws E_USAGE. */
export function settle(
  options: FetchOptions,
  env: Record<string, string | undefined> = process.env,
): Settings {
  const { repo, revision = "main", concurrency = 8, limitRate, internals = {} } = options;
  requireRepoName(repo);
  if (revision === "" || /[\u0000-\u0020\u007f\\?#]/.test(revision) || revision.includes("..")) {
    throw new StageError("E_USAGE", `"${revision}" is not a revision`);
  }
  if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 16) {
    throw new StageError("E_USAGE", `concurrency must be a whole number from 1 to 16, not ${concurrency}`);
  }
  if (limitRate !== undefined && !(limitRate > 0)) {
    throw new StageError("E_USAGE", `the rate limit must be above 0 bytes per second, not ${limitRate}`);
  }
  if (!options.dir) throw new StageError("E_USAGE", "no directory was given");
  return {
    repo,
    revision,
    dir: options.dir,
    concurrency,
    limitRate,
    endpoint: chooseEndpoint(options.endpoint, env),
    cdnHosts: (options.cdnHosts ?? []).map(hostName),
    include: options.include ?? [],
    exclude: options.exclude ?? [],
    first: options.first ?? [],
    repair: options.repair ?? false,
    adoptPartials: options.adoptPartials ?? false,
    switchRevision: options.switchRevision ?? false,
    timing: { ...TIMING, ...internals.timing },
    segmentBytes: internals.segmentBytes ?? CHUNK_BYTES,
    smallBytes: internals.smallBytes ?? 8 * 1024 * 1024,
    lock: internals.lock ?? true,
    lookup: internals.lookup,
  };
}

/** A host as URLs name it. Throws E_USAGE for anything more (a scheme, a port, a pattern), which would never match. */
function hostName(text: string): string {
  if (/^([\w.-]+|\[[0-9a-f:.]+\])$/i.test(text) && URL.canParse(`https://${text}`))
    return new URL(`https://${text}`).hostname;
  throw new StageError("E_USAGE", `${JSON.stringify(text)} is not the name of a host that serves files`, {
    hint: "give the name alone, without https:// and without a port",
  });
}
