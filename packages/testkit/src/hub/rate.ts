import type { OutgoingHttpHeaders } from "node:http";

export type Bucket = "api" | "resolvers";

export interface RateLimit {
  /** Requests per window. */
  q: number;
  /** Seconds per window. */
  w: number;
}

/** The Hub's published limits for anonymous callers: fixed windows of five minutes. */
const ANONYMOUS_LIMITS: Record<Bucket, RateLimit> = {
  api: { q: 500, w: 300 },
  resolvers: { q: 3000, w: 300 },
};

/** Fixed windows that count requests per bucket, and the headers (IETF draft 09) that tell the client. */
export class RateLimiter {
  readonly #limits: Record<Bucket, RateLimit>;
  readonly #windows = new Map<Bucket, { startedAt: number; used: number }>();

  constructor(limits: Partial<Record<Bucket, RateLimit>>) {
    this.#limits = { ...ANONYMOUS_LIMITS, ...limits };
  }

  /** Counts one request. `allowed` is false once the window is spent. */
  count(bucket: Bucket): { allowed: boolean; headers: OutgoingHttpHeaders } {
    const { q, w } = this.#limits[bucket];
    const now = performance.now() / 1000;
    let window = this.#windows.get(bucket);
    if (window === undefined || now >= window.startedAt + w) {
      window = { startedAt: now, used: 0 };
      this.#windows.set(bucket, window);
    }
    window.used++;
    const headers = rateHeaders(bucket, Math.max(0, q - window.used), Math.ceil(window.startedAt + w - now), {
      q,
      w,
    });
    return { allowed: window.used <= q, headers };
  }

  limit(bucket: Bucket): RateLimit {
    return this.#limits[bucket];
  }
}

export function rateHeaders(
  bucket: Bucket,
  left: number,
  seconds: number,
  limit: RateLimit,
): OutgoingHttpHeaders {
  return {
    RateLimit: `"${bucket}";r=${left};t=${seconds}`,
    "RateLimit-Policy": `"fixed window";"${bucket}";q=${limit.q};w=${limit.w}`,
  };
}
