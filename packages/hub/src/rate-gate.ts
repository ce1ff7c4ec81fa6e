import { StageError } from "@k3/stage";
import { pause } from "./backoff.ts";
import { type HeaderMap, headerText, parseRateLimit, parseRetryAfter } from "./headers.ts";
import type { HubTiming } from "./settings.ts";

/** The quota that the Hub counts a request under (Hub documentation on rate limits). */
export function hubBucket(url: URL): string {
  if (url.pathname.includes("/api/resolve-cache/")) return "resolvers";
  if (url.pathname.includes("/api/")) return "api";
  return /\/(resolve|raw)\//.test(url.pathname) ? "resolvers" : "pages";
}

interface Quota {
  closedUntil: number;
  /** When the next request may start while requests are spread over what is left of the window. */
  nextAt: number;
  spacing: number;
  /** When the window ends, and with it the need to spread: nobody waits longer for his turn. */
  fullAt: number;
}

/**
 * Keeps requests within the quotas that a server announces. One gate serves all connections: when a bucket is empty,
 * or a 429 or 503 names a wait, nobody asks until that time has passed; when less than a tenth is left, the rest is
 * spread over the remaining window. Buckets are the Hub's (`api`, `resolvers`, `pages`) or hosts of bodies.
 */
export class RateGate {
  readonly #quotas = new Map<string, Quota>();
  readonly #timing: HubTiming;
  readonly #onClose: (bucket: string, ms: number) => void;
  /** Requests waiting at a gate now. */
  waiting = 0;

  constructor(timing: HubTiming, onClose: (bucket: string, ms: number) => void) {
    this.#timing = timing;
    this.#onClose = onClose;
  }

  /** Resolves when a request of this bucket may be sent. */
  async pass(bucket: string, signal: AbortSignal): Promise<void> {
    const quota = this.#quota(bucket);
    this.waiting++;
    try {
      for (;;) {
        const now = performance.now();
        if (now < quota.closedUntil) {
          if (quota.closedUntil - now > this.#timing.giveUp) {
            const seconds = Math.ceil((quota.closedUntil - now) / 1000);
            throw new StageError("E_NETWORK", `the rate limit "${bucket}" asks to wait ${seconds} s`, {
              hint: "run the same command again later, or with an account (HF_TOKEN), which has a larger quota",
            });
          }
          await pause(quota.closedUntil - now, signal);
          continue;
        }
        if (quota.spacing === 0 || now >= quota.fullAt) return;
        const mine = Math.min(Math.max(now, quota.nextAt), quota.fullAt);
        quota.nextAt = mine + quota.spacing;
        await pause(mine - now, signal);
        if (performance.now() >= quota.closedUntil) return;
      }
    } finally {
      this.waiting--;
    }
  }

  /** Takes note of what a response says about quotas. True when it closed the gate for a named time. */
  observe(bucket: string, status: number, headers: HeaderMap): boolean {
    const limits = parseRateLimit(headerText(headers, "ratelimit"), headerText(headers, "ratelimit-policy"));
    let closed = false;
    for (const limit of limits) {
      const quota = this.#quota(limit.bucket);
      if (limit.remaining === 0) {
        this.#close(limit.bucket, limit.resetSeconds * 1000);
        closed = true;
      } else if (limit.quota !== undefined && limit.remaining < limit.quota / 10) {
        quota.spacing = (limit.resetSeconds * 1000) / limit.remaining;
        quota.fullAt = performance.now() + limit.resetSeconds * 1000 + this.#timing.ratePad;
      } else {
        quota.spacing = 0;
      }
    }
    if (status !== 429 && status !== 503) return closed;
    const retryAfter = parseRetryAfter(headerText(headers, "retry-after"), Date.now());
    const own = limits.some((limit) => limit.bucket === bucket && limit.remaining === 0);
    if (retryAfter !== undefined && !own) {
      this.#close(bucket, retryAfter * 1000);
      closed = true;
    } else if (closed && !own) {
      // The server named another bucket than the one we filed the request under: both must wait.
      this.#close(bucket, Math.max(...limits.map((limit) => limit.resetSeconds)) * 1000);
    }
    return closed;
  }

  #close(bucket: string, ms: number): void {
    const { ratePad } = this.#timing;
    const quota = this.#quota(bucket);
    const until = performance.now() + ms + ratePad * (1 + 2 * Math.random());
    if (until <= quota.closedUntil) return;
    if (quota.closedUntil <= performance.now()) this.#onClose(bucket, ms + ratePad);
    quota.closedUntil = until;
    quota.spacing = 0;
  }

  #quota(bucket: string): Quota {
    let quota = this.#quotas.get(bucket);
    if (!quota) {
      quota = { closedUntil: 0, nextAt: 0, spacing: 0, fullAt: 0 };
      this.#quotas.set(bucket, quota);
    }
    return quota;
  }
}
