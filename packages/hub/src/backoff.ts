import { setTimeout as delay } from "node:timers/promises";
import { StageError, throwIfAborted } from "@k3/stage";

/** Milliseconds to wait before attempt `attempt` (from 0): full jitter, random in [0, min(cap, base x 2^attempt)). */
export function backoffMs(attempt: number, base: number, cap: number, random = Math.random): number {
  return random() * Math.min(cap, base * 2 ** Math.min(attempt, 30));
}

/** Waits; an abort ends the wait at once with the error of the abort. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  throwIfAborted(signal);
  try {
    // Longer delays than a 32-bit timer holds are taken in turns by the callers, who check again after waking.
    await delay(Math.min(Math.max(0, ms), 2 ** 31 - 1), undefined, { signal });
  } catch {
    throwIfAborted(signal);
  }
}

const RETRIED_STATUS = new Set([408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524, 529]);

export const isTransientStatus = (status: number) => RETRIED_STATUS.has(status) || status >= 500;

const CERTIFICATE =
  /^(CERT_|ERR_TLS_CERT|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO_(GET_ISSUER|VERIFY)|HOSTNAME_MISMATCH|INVALID_CA)/;

/**
 * A failure below HTTP that no retry will cure, as the error to end with: a certificate that is not trusted, a proxy
 * that wants credentials. Undefined for everything that may pass: resets, refused connections, timeouts, name lookups.
 */
export function hopelessNetworkError(error: unknown, host: string): StageError | undefined {
  for (const cause of causes(error)) {
    const code = String((cause as NodeJS.ErrnoException).code ?? "");
    if (CERTIFICATE.test(code)) {
      return new StageError("E_NETWORK", `the certificate of ${host} is not trusted (${code})`, {
        hint: "if a proxy of yours inspects traffic, give its certificate in NODE_EXTRA_CA_CERTS",
        cause: error,
      });
    }
    // As undici words it. Any other text may have this number by chance: "stalled: 407 bytes in 30 s".
    if (/^Proxy response \(407\)/.test((cause as Error).message ?? "")) {
      return new StageError("E_NETWORK", `the proxy on the way to ${host} asks for authentication (407)`, {
        hint: "put user and password into HTTPS_PROXY (http://user:password@host:port)",
        cause: error,
      });
    }
  }
  return undefined;
}

/** What went wrong below HTTP, in a few words: the code and message of the innermost cause. */
export function networkReason(error: unknown): string {
  const chain = causes(error);
  const last = chain.at(-1) as NodeJS.ErrnoException | undefined;
  const code = chain.map((cause) => (cause as NodeJS.ErrnoException).code).find((c) => typeof c === "string");
  return [code, last?.message].filter(Boolean).join(": ") || String(error);
}

function causes(error: unknown): unknown[] {
  const chain: unknown[] = [];
  let current = error;
  while (current instanceof Error && chain.length < 8) {
    chain.push(current);
    if (current instanceof AggregateError) chain.push(...current.errors.slice(0, 4));
    current = current.cause;
  }
  return chain;
}
