import { randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { AddressInfo } from "node:net";
import { answerApi } from "./api.ts";
import { type BlackHole, startBlackHole } from "./black-hole.ts";
import { Exchange, type RequestRecord, type Where } from "./exchange.ts";
import { FaultBoard, type FaultName, type Faults } from "./faults.ts";
import { Pace } from "./pace.ts";
import { type Bucket, type RateLimit, RateLimiter, rateHeaders } from "./rate.ts";
import { Repository, type RepositoryOptions } from "./repository.ts";
import { answerResolve, answerResolveCache, answerStorage } from "./resolve.ts";
import { type Signing, UrlSigner } from "./signed-url.ts";
import type { HubState } from "./state.ts";

export interface HubOptions {
  repositories: readonly RepositoryOptions[];
  /** Old name to present name: the old one redirects with 307. */
  renamed?: Record<string, string>;
  /** Port of the Hub; default 0, any free one. The CDN and the third host always take free ports. */
  port?: number;
  /** Tree entries per page (the real Hub: 1000). */
  pageSize?: number;
  /** Life of signed URLs in milliseconds (the real Hub: an hour). */
  ttlMs?: number;
  /** Whether LFS files carry Xet hashes and links, as Kimi K3's do. */
  xet?: boolean;
  signing?: Signing;
  /** Tokens that are valid; others get 401. Default: any token is. */
  tokens?: readonly string[];
  limits?: Partial<Record<Bucket, RateLimit>>;
  /** Key and certificate (PEM) to serve the Hub and the CDN over TLS. */
  tls?: { key: string; cert: string };
  /** Called when a request has been answered or given up. */
  onRequest?: (record: RequestRecord) => void;
}

/** A running loopback Hub. */
export interface Hub {
  /** `http://127.0.0.1:PORT`: what HF_ENDPOINT or `--endpoint` takes. */
  readonly endpoint: string;
  /** `http://127.0.0.2:PORT`: another hostname, where LFS bodies come from. */
  readonly cdn: string;
  /** `http://127.0.0.3:PORT`: a host that nobody should talk to. It answers with empty lists and logs what it is told. */
  readonly other: string;
  /** Every request since the start (or the last `clearLog()`), in order of arrival. */
  readonly requests: readonly RequestRecord[];
  clearLog(): void;
  /** Merges into the faults in force; `undefined` clears one. */
  setFaults(faults: { [Name in FaultName]?: Faults[Name] | undefined }): void;
  clearFaults(): void;
  /** How often a fault has struck since it was set. */
  struck(fault: FaultName): number;
  repository(name: string): Repository;
  /** File-body bytes sent by all hosts since the last `clearLog()`. */
  bodyBytes(): number;
  close(): Promise<void>;
}

/** The log keeps this many requests; the oldest go first. */
const LOG_LIMIT = 200_000;

/**
 * Starts a Hugging Face Hub on the loopback interface: the Hub on 127.0.0.1, its storage on 127.0.0.2, a hostile host
 * on 127.0.0.3, all plain HTTP/1.1 unless `tls` is given. Routes and headers follow the real Hub's (see README).
 * Throws when an address cannot be bound (127.0.0.2 and .3 need Linux, or aliases elsewhere).
 */
export async function startHub(options: HubOptions): Promise<Hub> {
  const startedAt = performance.now();
  const requests: RequestRecord[] = [];
  const faults = new FaultBoard();
  const servers: Server[] = [];
  let hole: Promise<BlackHole> | undefined;

  const listen = async (
    where: Where,
    host: string,
    port: number,
    tls: HubOptions["tls"],
  ): Promise<string> => {
    const handler = (request: IncomingMessage, response: ServerResponse) => {
      const exchange = new Exchange(where, request, response, performance.now() - startedAt);
      if (requests.length >= LOG_LIMIT) requests.shift();
      requests.push(exchange.record);
      response.once("close", () => options.onRequest?.(exchange.record));
      answer(exchange, state).catch((error: unknown) => {
        if (!response.headersSent && exchange.open) exchange.error(500, (error as Error).message);
        else response.destroy();
      });
    };
    const server = tls ? createTlsServer(tls, handler) : createServer(handler);
    server.keepAliveTimeout = 30_000;
    servers.push(server);
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen({ host, port }, resolve);
    });
    return `${tls ? "https" : "http"}://${host}:${(server.address() as AddressInfo).port}`;
  };

  const repositories = await Promise.all(
    options.repositories.map((repository) => Repository.create(repository)),
  );
  const state: HubState = {
    repositories: new Map(repositories.map((repository) => [repository.name, repository])),
    renamed: new Map(Object.entries(options.renamed ?? {})),
    tokens: options.tokens === undefined ? null : new Set(options.tokens),
    pageSize: options.pageSize ?? 1000,
    ttlMs: options.ttlMs ?? 3_600_000,
    xet: options.xet ?? true,
    faults,
    pace: new Pace(),
    limiter: new RateLimiter(options.limits ?? {}),
    signer: new UrlSigner(randomBytes(32), options.signing ?? "amz"),
    objects: new Map(),
    cdnOrigin: "",
    plainCdnOrigin: "",
    otherOrigin: "",
    blackHole: () => {
      hole ??= startBlackHole();
      return hole;
    },
  };
  const close = async () => {
    for (const server of servers) server.closeAllConnections();
    await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
    await (await hole)?.close();
  };
  try {
    const endpoint = await listen("hub", "127.0.0.1", options.port ?? 0, options.tls);
    state.cdnOrigin = await listen("cdn", "127.0.0.2", 0, options.tls);
    state.plainCdnOrigin = options.tls ? await listen("cdn", "127.0.0.2", 0, undefined) : state.cdnOrigin;
    state.otherOrigin = await listen("other", "127.0.0.3", 0, undefined);
    return {
      endpoint,
      cdn: state.cdnOrigin,
      other: state.otherOrigin,
      requests,
      clearLog: () => requests.splice(0),
      setFaults: (changes) => faults.set(changes),
      clearFaults: () => faults.clear(),
      struck: (fault) => faults.struck(fault),
      repository: (name) => {
        const repository = state.repositories.get(name);
        if (repository === undefined) throw new Error(`the loopback Hub has no repository ${name}`);
        return repository;
      },
      bodyBytes: () =>
        requests.reduce(
          (sum, { path, status, bytesSent }) => (path !== null && status < 300 ? sum + bytesSent : sum),
          0,
        ),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

async function answer(exchange: Exchange, state: HubState): Promise<void> {
  exchange.common["X-Request-Id"] = `Root=1-${randomBytes(12).toString("hex")}`;
  if (exchange.record.where === "other") return exchange.json(200, []);
  if (exchange.record.where === "cdn") return answerStorage(exchange, state);
  await answerHub(exchange, state);
}

async function answerHub(exchange: Exchange, state: HubState): Promise<void> {
  const { faults } = state;
  const target = parseTarget(exchange.segments, state);
  exchange.record.path = target?.kind === "resolve" || target?.kind === "raw" ? target.path : null;
  const bucket: Bucket = target?.kind === "api" ? "api" : "resolvers";
  const { allowed, headers } = state.limiter.count(bucket);
  Object.assign(exchange.common, headers);
  const limited = faults.get("hub429");
  if (
    limited &&
    (limited.bucket ?? bucket) === bucket &&
    faults.take("hub429", exchange.record.path ?? undefined)
  ) {
    const { r = 0, t = 1, retryAfter } = limited;
    Object.assign(exchange.common, rateHeaders(bucket, r, t, state.limiter.limit(bucket)));
    return exchange.error(
      429,
      "Too Many Requests",
      undefined,
      retryAfter === undefined ? {} : { "Retry-After": retryAfter },
    );
  }
  if (!allowed) return exchange.error(429, "Too Many Requests");
  if (faults.take("hub503", exchange.record.path ?? undefined))
    return exchange.error(503, "Service Unavailable");
  if (target === undefined) return exchange.error(404, "Sorry, we can't find the page you are looking for.");

  const token = exchange.record.auth?.match(/^Bearer (.+)$/)?.[1];
  if (exchange.record.auth !== null && (token === undefined || state.tokens?.has(token) === false)) {
    return exchange.error(401, "Invalid credentials in Authorization header");
  }
  const renamed = state.renamed.get(target.name);
  if (renamed !== undefined) {
    const location = exchange.request.url!.replace(`/${target.name}/`, `/${renamed}/`);
    return exchange.reply(307, { Location: location });
  }
  const repository = state.repositories.get(target.name);
  // The Hub does not tell strangers whether a private repository exists.
  if (repository === undefined || (repository.private && token === undefined)) {
    return token === undefined
      ? exchange.error(401, "Invalid username or password.", "RepoNotFound")
      : exchange.error(404, "Repository not found", "RepoNotFound");
  }
  if (target.kind === "api") return answerApi(exchange, state, repository, target.rest);
  if (repository.gated && (token === undefined || !repository.granted.has(token))) {
    const message = `Access to model ${repository.name} is restricted.`;
    return exchange.error(token === undefined ? 401 : 403, message, "GatedRepo");
  }
  const { revision, path } = target;
  if (target.kind === "resolve-cache") return answerResolveCache(exchange, state, repository, revision, path);
  return answerResolve(exchange, state, repository, target.kind, revision, path);
}

type Target =
  | { kind: "api"; name: string; rest: string[] }
  | { kind: "resolve" | "raw" | "resolve-cache"; name: string; revision: string; path: string };

/** Which repository and route a path names: repository names have one segment (canonical) or two. */
function parseTarget(segments: string[], state: HubState): Target | undefined {
  const known = (name: string) => state.repositories.has(name) || state.renamed.has(name);
  if (segments[0] === "api" && segments[1] === "resolve-cache") {
    const length = known(segments.slice(3, 5).join("/")) ? 2 : 1;
    const [revision = "", ...path] = segments.slice(3 + length);
    return {
      kind: "resolve-cache",
      name: segments.slice(3, 3 + length).join("/"),
      revision,
      path: path.join("/"),
    };
  }
  if (segments[0] === "api" && segments[1] === "models") {
    const canonical = known(segments[2] ?? "") && !known(segments.slice(2, 4).join("/"));
    const length = canonical ? 1 : 2;
    return { kind: "api", name: segments.slice(2, 2 + length).join("/"), rest: segments.slice(2 + length) };
  }
  const length = segments[1] === "resolve" || segments[1] === "raw" ? 1 : 2;
  const kind = segments[length];
  if (kind !== "resolve" && kind !== "raw") return undefined;
  const [revision = "", ...path] = segments.slice(length + 1);
  return { kind, name: segments.slice(0, length).join("/"), revision, path: path.join("/") };
}
