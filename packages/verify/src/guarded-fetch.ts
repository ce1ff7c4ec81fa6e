import { StageError, type StageOptions } from "@k3/stage";
import { Agent, type Dispatcher, EnvHttpProxyAgent, type Response, fetch as undiciFetch } from "undici";

const ATTEMPTS = 5;
const TIMEOUT_MS = 30_000;
/** A listing of 100,000 files fits. */
const MAX_BODY_BYTES = 64 * 1024 * 1024;
const MAX_REQUESTS = 2000;
/** Longer than this we do not wait for a rate limit to end (the Hub's windows are 5 minutes). */
const MAX_WAIT_MS = 320_000;

export interface GuardOptions extends StageOptions {
  endpoint: string;
  token: string | undefined;
  /** First wait of the exponential backoff, in milliseconds; for tests. */
  backoffMs?: number;
}

/**
 * The one `fetch` that the Hub client gets: it asks the endpoint's origin and nobody else (the client would follow the
 * link to a next page anywhere, and take the token along), never follows a redirect, adds the token itself, bounds
 * time and size, and repeats what can be repeated. Throws E_HUB for refusals and broken protocol, E_NETWORK when all
 * attempts failed. Close it after use.
 */
export function guardedFetch(options: GuardOptions): { fetch: typeof fetch; close: () => Promise<void> } {
  const { endpoint, token, signal } = options;
  const { origin } = new URL(endpoint);
  const agent = proxied()
    ? new EnvHttpProxyAgent()
    : new Agent({ allowH2: false, connect: { timeout: 10_000 } });
  const seen = new Set<string>();
  const guarded = async (input: unknown): Promise<unknown> => {
    const url = new URL(String(input));
    if (url.origin !== origin) {
      throw new StageError("E_HUB", `the listing leads to another host, ${url.host}: refused`, {
        hint: "nothing was sent there; use another --endpoint",
      });
    }
    if (seen.has(url.href))
      throw new StageError("E_HUB", `the listing leads in a circle: ${url.pathname} comes again`);
    if (seen.add(url.href).size > MAX_REQUESTS) throw new StageError("E_HUB", "the listing does not end");
    return ask(url, agent, token, options, signal);
  };
  return { fetch: guarded as typeof fetch, close: () => agent.destroy() };
}

const proxied = () =>
  ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"].some((name) => process.env[name]);

async function ask(
  url: URL,
  agent: Dispatcher,
  token: string | undefined,
  { backoffMs = 500, onEvent }: GuardOptions,
  signal: AbortSignal | undefined,
): Promise<globalThis.Response> {
  let problem = "";
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    let wait = Math.random() * backoffMs * 2 ** attempt;
    try {
      const response = await undiciFetch(url, {
        dispatcher: agent,
        redirect: "manual",
        signal: AbortSignal.any([...(signal ? [signal] : []), AbortSignal.timeout(TIMEOUT_MS)]),
        headers: { "accept-encoding": "identity", ...(token ? { authorization: `Bearer ${token}` } : {}) },
      });
      if (response.ok) return await buffered(response);
      await response.body?.cancel().catch(() => undefined);
      const asked = retryAfterMs(response);
      if (response.status !== 429 && response.status !== 408 && response.status < 500)
        throw refused(url, response);
      problem = `status ${response.status}`;
      if (asked !== undefined) wait = Math.min(asked, MAX_WAIT_MS);
    } catch (error) {
      if (error instanceof StageError) throw error;
      if (signal?.aborted) throw interrupted(signal);
      const { cause, message } = error as Error & { cause?: { code?: string; message?: string } };
      problem = cause?.code ?? cause?.message ?? message;
    }
    if (attempt === ATTEMPTS) break;
    onEvent?.({
      type: "log",
      level: "warn",
      stage: "verify",
      message: `${url.host}: ${problem}; asking again in ${(wait / 1000).toFixed(1)} s`,
    });
    await pause(wait, signal);
  }
  throw new StageError(
    "E_NETWORK",
    `${url.origin}${url.pathname} failed ${ATTEMPTS} times; last: ${problem}`,
    {
      hint: "check the connection (and HTTPS_PROXY, if there is a proxy), or verify offline with --manifest",
    },
  );
}

/** The body, bounded, as a response that the Hub client can read. */
async function buffered(response: Response): Promise<globalThis.Response> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of response.body ?? []) {
    length += piece.length;
    if (length > MAX_BODY_BYTES)
      throw new StageError("E_HUB", `an answer of more than ${MAX_BODY_BYTES} bytes`);
    pieces.push(piece);
  }
  return new globalThis.Response(Buffer.concat(pieces), {
    status: response.status,
    headers: [...response.headers],
  });
}

/** What the Hub means by a status that repeating does not change. */
function refused(url: URL, response: Response): StageError {
  const code = response.headers.get("x-error-code");
  const what =
    response.status >= 300 && response.status < 400
      ? "answers with a redirect, which a listing must not"
      : `refuses: status ${response.status}${code ? ` (${code})` : ""}`;
  const access = response.status === 401 || response.status === 403;
  return new StageError("E_HUB", `${url.origin}${url.pathname}: the Hub ${what}`, {
    hint: access
      ? "set HF_TOKEN to a token that may read this repository, or check its name"
      : "check the names of repository and commit",
  });
}

function retryAfterMs(response: Response): number | undefined {
  const limit = /;\s*r=0\s*;\s*t=(\d+)/.exec(response.headers.get("ratelimit") ?? "");
  if (limit) return (Number(limit[1]) + 1) * 1000;
  const after = response.headers.get("retry-after");
  if (after === null) return undefined;
  const ms = /^\d+$/.test(after) ? Number(after) * 1000 : Date.parse(after) - Date.now();
  return Number.isFinite(ms) && ms >= 0 ? ms : undefined;
}

const interrupted = (signal: AbortSignal) =>
  new StageError("E_INTERRUPTED", "interrupted", {
    hint: "run the same command again",
    cause: signal.reason,
  });

function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(interrupted(signal!));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
