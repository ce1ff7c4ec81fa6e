import { StageError, throwIfAborted } from "@k3/stage";
import { backoffMs, hopelessNetworkError, isTransientStatus, networkReason, pause } from "./backoff.ts";
import { type HeaderMap, headerText, parseLink } from "./headers.ts";
import type { Ask, HttpClient, Reply } from "./http-client.ts";
import type { HubReporter, HubTiming } from "./settings.ts";
import { shownUrl } from "./token.ts";

const MAX_METADATA_BYTES = 64 * 1024 * 1024;
const MAX_PAGES = 2000;
const METADATA_ATTEMPTS = 6;

/** Requests to the endpoint itself: paced, retried while that can help, failures turned into one clear error. */
export class Hub {
  readonly #client: HttpClient;
  readonly #timing: HubTiming;
  readonly #reporter: HubReporter;
  readonly #signal: AbortSignal;
  readonly #warned = new Set<string>();

  constructor(client: HttpClient, timing: HubTiming, reporter: HubReporter, signal: AbortSignal) {
    this.#client = client;
    this.#timing = timing;
    this.#reporter = reporter;
    this.#signal = signal;
  }

  get endpoint(): string {
    return this.#client.endpoint;
  }

  /**
   * A request whose final status is 2xx, or which stopped at a redirect away from the endpoint. Network failures, 408,
   * 425 and 5xx are retried with full jitter, so many times and never beyond the time to give up; 429 for as long as the
   * server asks. Throws E_HUB, E_NETWORK.
   */
  async call(
    url: URL,
    ask: Omit<Ask, "signal">,
    { attempts = METADATA_ATTEMPTS }: { attempts?: number } = {},
  ): Promise<Reply> {
    const startedAt = performance.now();
    for (let failures = 0; ; ) {
      let problem: string;
      try {
        const reply = await this.#client.send(url, { ...ask, signal: this.#signal });
        for (const headers of [...reply.hops, reply.headers]) this.#warn(headers);
        if (reply.redirectedTo || (reply.status >= 200 && reply.status < 300)) return reply;
        const refusal = isTransientStatus(reply.status)
          ? undefined
          : await hubRefusal(reply).finally(() => discard(reply));
        if (refusal) throw refusal;
        discard(reply);
        problem = `status ${reply.status}`;
        if (reply.status === 429 && reply.waitNamed) {
          if (performance.now() - startedAt < this.#timing.giveUp) continue;
        }
      } catch (error) {
        throwIfAborted(this.#signal);
        if (error instanceof StageError) throw error;
        const hopeless = hopelessNetworkError(error, url.host);
        if (hopeless) throw hopeless;
        problem = networkReason(error);
      }
      failures++;
      this.#reporter.retried(`${url.host}: ${problem}`);
      if (failures >= attempts || performance.now() - startedAt > this.#timing.giveUp) {
        throw new StageError("E_NETWORK", `${shownUrl(url)} failed ${failures} times; last: ${problem}`, {
          hint: "check the connection (and HTTPS_PROXY, if there is a proxy) and run the same command again",
        });
      }
      await pause(backoffMs(failures, this.#timing.backoffBase, this.#timing.backoffCap), this.#signal);
    }
  }

  /**
   * A `fetch` for @huggingface/hub: GET of JSON from the endpoint's origin only, never anywhere else, with a bound on the
   * size. The token is added here, so the library never holds it. It also checks the chain of listing pages: same
   * origin, same path, no page twice; the library would follow anything and take the token along.
   */
  fetcher(): typeof fetch {
    let listing: string | undefined;
    const pages = new Set<string>();
    return async (input) => {
      const url = new URL(String(input));
      if (!this.#client.isEndpoint(url)) {
        throw new StageError("E_HUB", `a listing leads to another host, ${url.host}: refused`);
      }
      const reply = await this.#bodyOf(url);
      const headers = new Headers({ "content-type": "application/json" });
      if (/\/tree\//.test(url.pathname)) {
        // Where it was answered from: a repository that was renamed lists itself under its new name.
        listing ??= reply.url.pathname;
        pages.add(url.href);
        const next = parseLink(headerText(reply.headers, "link")).find((link) => link.rel.includes("next"));
        if (next)
          headers.set("link", `<${this.#nextPage(reply.url, next.target, listing, pages)}>; rel="next"`);
      }
      return new Response(reply.text, { status: 200, headers });
    };
  }

  #nextPage(url: URL, target: string, listing: string, pages: Set<string>): string {
    let next: URL;
    try {
      next = new URL(target, url);
    } catch {
      throw new StageError("E_HUB", "the next page of the listing is not at a URL");
    }
    if (!this.#client.isEndpoint(next) || next.pathname !== listing) {
      const where = this.#client.isEndpoint(next) ? shownUrl(next) : `another host, ${next.host}`;
      throw new StageError("E_HUB", `the next page of the listing is at ${where}: refused`, {
        hint: `a listing must stay at ${this.endpoint}`,
      });
    }
    if (pages.has(next.href)) throw new StageError("E_HUB", "the pages of the listing go round in a circle");
    if (pages.size >= MAX_PAGES)
      throw new StageError("E_HUB", `the listing has more than ${MAX_PAGES} pages`);
    return next.href;
  }

  /** The body as text that is JSON; a body that breaks off is asked for again. */
  async #bodyOf(url: URL): Promise<{ url: URL; text: string; headers: HeaderMap }> {
    for (let failures = 1; ; failures++) {
      const headers = { accept: "application/json" };
      const reply = await this.call(url, { method: "GET", foreign: "refuse", headers });
      try {
        const text = await readText(reply, url, this.#timing.giveUp);
        return { url: reply.url, text, headers: reply.headers };
      } catch (error) {
        throwIfAborted(this.#signal);
        if (error instanceof StageError || failures >= METADATA_ATTEMPTS) throw error;
        this.#reporter.retried(`${url.host}: ${networkReason(error)}`);
        await pause(backoffMs(failures, this.#timing.backoffBase, this.#timing.backoffCap), this.#signal);
      }
    }
  }

  /** `X-HF-Warning: topic; message`, told once per topic. */
  #warn(headers: HeaderMap): void {
    const warning = headerText(headers, "x-hf-warning");
    if (!warning) return;
    const [topic, ...message] = warning.split(";");
    if (this.#warned.has(topic!)) return;
    this.#warned.add(topic!);
    this.#reporter.log("warn", `the Hub says: ${(message.join(";") || topic!).trim().slice(0, 500)}`);
  }
}

async function readText(reply: Reply, url: URL, giveUpMs: number): Promise<string> {
  const startedAt = performance.now();
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of reply.body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MAX_METADATA_BYTES) {
      discard(reply);
      throw new StageError("E_HUB", `${shownUrl(url)} answered with more than ${MAX_METADATA_BYTES} bytes`);
    }
    if (performance.now() - startedAt > giveUpMs) {
      discard(reply);
      const seconds = Math.round(giveUpMs / 1000);
      throw new StageError("E_NETWORK", `the answer of ${shownUrl(url)} has not ended after ${seconds} s`, {
        hint: "check the connection, or try another --endpoint",
      });
    }
    chunks.push(chunk);
  }
  const text = Buffer.concat(chunks).toString("utf8");
  try {
    JSON.parse(text);
  } catch {
    const what = /^\s*</.test(text) ? "a web page" : "something else";
    throw new StageError("E_HUB", `${shownUrl(url)} answered with ${what} instead of JSON`, {
      hint: "check --endpoint; a captive portal or a broken mirror answers like this",
    });
  }
  return text;
}

/** Drops a response without reading the rest of its body. */
export function discard(reply: Pick<Reply, "body">): void {
  reply.body.on("error", () => undefined).destroy();
}

/** What a 4xx of the Hub means, as the error to end with: hub headers first, then the status. */
async function hubRefusal(reply: Reply): Promise<StageError> {
  const code = headerText(reply.headers, "x-error-code");
  const said = (headerText(reply.headers, "x-error-message") ?? (await shortMessage(reply))).slice(0, 300);
  const where = shownUrl(reply.url);
  const message = (what: string) => `${where}: ${what} (${reply.status}${said ? `: ${said}` : ""})`;
  const login = "log in (HF_TOKEN or `hf auth login`) with an account that has access";
  if (code === "GatedRepo") {
    return new StageError("E_HUB", message("the repository is gated or disabled"), {
      hint: `accept its terms on the Hub's page, then ${login}`,
    });
  }
  if (code === "RevisionNotFound") {
    return new StageError("E_HUB", message("there is no such revision"), { hint: "check --revision" });
  }
  if (code === "EntryNotFound") return new StageError("E_HUB", message("there is no such file"));
  if (code === "RepoNotFound" || reply.status === 401 || reply.status === 403) {
    return new StageError("E_HUB", message("the repository does not exist, or access to it was refused"), {
      hint: `check the name; if it is private, ${login}`,
    });
  }
  return new StageError("E_HUB", message("the Hub refused the request"));
}

async function shortMessage(reply: Reply): Promise<string> {
  try {
    let text = "";
    for await (const chunk of reply.body as AsyncIterable<Buffer>) {
      text += chunk.toString("utf8");
      if (text.length > 4096) break;
    }
    const { error } = JSON.parse(text) as { error?: unknown };
    return typeof error === "string" ? error : "";
  } catch {
    return "";
  }
}
