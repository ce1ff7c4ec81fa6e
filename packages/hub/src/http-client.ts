import { StageError } from "@k3/stage";
import { Agent, type Dispatcher, EnvHttpProxyAgent } from "undici";
import { DEFAULT_ENDPOINT } from "./endpoint.ts";
import { type HeaderMap, headerText } from "./headers.ts";
import { hubBucket, type RateGate } from "./rate-gate.ts";
import type { ClientSettings } from "./settings.ts";
import { shownUrl } from "./token.ts";

/** Hosts from which the default endpoint is known to serve bodies (Hub documentation and captured redirects). */
const KNOWN_BODY_HOSTS = new Set([
  "huggingface.co",
  "cas-server.xethub.hf.co",
  "cas-server.xethub-eu.hf.co",
  "transfer.xethub.hf.co",
  "transfer.xethub-eu.hf.co",
  "us.aws.cdn.hf.co",
  "us.gcp.cdn.hf.co",
  "cdn-lfs-us-1.hf.co",
  "cdn-lfs-eu-1.hf.co",
  "cas-bridge.xethub.hf.co",
]);

const MAX_REDIRECTS = 5;

export interface Reply {
  /** Where the response came from, after redirects. */
  url: URL;
  status: number;
  headers: HeaderMap;
  body: Dispatcher.ResponseData["body"];
  /** Headers of the endpoint's own redirects on the way here, in order: what the Hub says of a file is on them. */
  hops: HeaderMap[];
  /** The server is out of quota and said how long to wait; the gate sees to it. */
  waitNamed: boolean;
  /** Set when the redirect to another origin was not followed, as asked. */
  redirectedTo?: URL;
}

export interface Ask {
  method: "GET" | "HEAD";
  headers?: Record<string, string>;
  signal: AbortSignal;
  /**
   * What to do with a redirect that leaves the endpoint's origin: metadata refuses, `locate` stops, bodies go on, which
   * have connections of their own.
   */
  foreign: "refuse" | "stop" | "follow";
}

/** HTTP with rules: where requests may go, and which of them carry the token. */
export class HttpClient {
  readonly endpoint: string;
  readonly #userAgent: string;
  readonly #origin: string;
  readonly #token: string | undefined;
  readonly #gate: RateGate;
  readonly #hub: Dispatcher;
  readonly #bodies: Dispatcher;
  readonly #allowed: Set<string> | undefined;

  constructor(settings: ClientSettings, token: string | undefined, gate: RateGate) {
    this.#gate = gate;
    this.endpoint = settings.endpoint;
    this.#userAgent = `${settings.client} (node/${process.versions.node})`;
    this.#origin = new URL(settings.endpoint).origin;
    this.#token = token;
    this.#hub = dispatcher(settings, 4);
    this.#bodies = dispatcher(settings, settings.connections ?? 1);
    this.#allowed =
      this.#origin === DEFAULT_ENDPOINT
        ? new Set([...KNOWN_BODY_HOSTS, ...(settings.cdnHosts ?? [])])
        : undefined;
  }

  isEndpoint(url: URL): boolean {
    return url.origin === this.#origin;
  }

  /**
   * Sends a request, and follows redirects by hand, each within the quotas that are known. Gives the final response,
   * whatever its status; the caller must consume or destroy the body. Throws E_HUB for a redirect against the rules, and undici's errors as they are.
   */
  async send(start: URL, ask: Ask): Promise<Reply> {
    const hops: HeaderMap[] = [];
    let url = start;
    for (let hop = 0; ; hop++) {
      const own = this.isEndpoint(url);
      const bucket = own ? hubBucket(url) : url.host;
      await this.#gate.pass(bucket, ask.signal);
      // Bodies that the endpoint serves itself must not keep its metadata waiting.
      const connections = own && ask.foreign !== "follow" ? this.#hub : this.#bodies;
      const answer = connections.request({
        origin: url.origin,
        path: `${url.pathname}${url.search}`,
        method: ask.method,
        headers: {
          "user-agent": this.#userAgent,
          // A compressed answer may ignore Range, and has no length to check.
          "accept-encoding": "identity",
          ...ask.headers,
          ...(own && this.#token ? { authorization: `Bearer ${this.#token}` } : {}),
        },
        signal: ask.signal,
      });
      const response = await orAborted(answer, ask.signal);
      const { statusCode: status, headers, body } = response;
      const waitNamed = this.#gate.observe(bucket, status, headers);
      const reply = { url, status, headers, body, hops, waitNamed };
      const target = headerText(headers, "location");
      if (!isRedirect(status) || target === undefined) return reply;
      body.on("error", () => undefined).destroy();
      if (own) hops.push(headers);
      const next = this.#redirect(url, target);
      if (hop >= MAX_REDIRECTS) {
        throw new StageError("E_HUB", `${shownUrl(start)} redirects more than ${MAX_REDIRECTS} times`);
      }
      if (!this.isEndpoint(next)) {
        if (ask.foreign === "refuse") {
          throw new StageError("E_HUB", `${shownUrl(url)} redirects to another host, ${next.host}: refused`, {
            hint: `listings are taken from ${this.#origin} only; give --endpoint ${next.origin} if you trust it`,
          });
        }
        this.#requireBodyHost(next, url);
        if (ask.foreign === "stop") return { ...reply, redirectedTo: next };
      }
      url = next;
    }
  }

  #redirect(from: URL, target: string): URL {
    let next: URL;
    try {
      next = new URL(target, from);
    } catch {
      throw new StageError("E_HUB", `${shownUrl(from)} redirects to something that is not a URL`);
    }
    if (next.protocol !== "https:" && next.protocol !== "http:") {
      throw new StageError("E_HUB", `${shownUrl(from)} redirects to a ${next.protocol} URL: refused`);
    }
    if (next.protocol === "http:" && (from.protocol === "https:" || this.#origin.startsWith("https:"))) {
      throw new StageError("E_HUB", `${shownUrl(from)} redirects from https to http (${next.host}): refused`);
    }
    next.username = "";
    next.password = "";
    next.hash = "";
    return next;
  }

  #requireBodyHost(url: URL, from: URL): void {
    if (!this.#allowed || (this.#allowed.has(url.hostname) && url.protocol === "https:")) return;
    throw new StageError(
      "E_HUB",
      `${shownUrl(from)} sends us to ${url.host}, which is not known to serve files`,
      {
        hint: `if you trust that host, add --cdn-host ${url.hostname}`,
      },
    );
  }

  async close(): Promise<void> {
    await Promise.all([this.#hub.destroy(), this.#bodies.destroy()]);
  }
}

const isRedirect = (status: number) =>
  status === 301 || status === 302 || status === 303 || status === 307 || status === 308;

/** undici notices an abort only once there is a connection, which may take as long as `connect`: this does at once. */
function orAborted<T>(answer: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
    answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

function dispatcher(settings: ClientSettings, connections: number): Dispatcher {
  const { timing, lookup } = settings;
  const connect = {
    timeout: timing.connect,
    autoSelectFamily: true,
    autoSelectFamilyAttemptTimeout: 250,
    ...(lookup ? { lookup } : {}),
  };
  const options = {
    connections,
    pipelining: 1,
    allowH2: false,
    connect,
    headersTimeout: timing.headers,
    // The watchdog of the transfers is stricter and knows when we ourselves are not reading; this is the last resort.
    bodyTimeout: timing.stall * 4,
    keepAliveTimeout: 15_000,
  };
  const proxied = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"].some(
    (name) => process.env[name],
  );
  return proxied ? new EnvHttpProxyAgent(options) : new Agent(options);
}
