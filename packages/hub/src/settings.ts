import type { LookupFunction } from "node:net";

/** Times of requests and waits, in milliseconds. */
export interface HubTiming {
  /** To connect, TLS included. */
  connect: number;
  /** From a request to the headers of its answer. */
  headers: number;
  /** A body that brings nothing for four times this long is given up. */
  stall: number;
  /** First bound and greatest bound of the random wait before a request is repeated. */
  backoffBase: number;
  backoffCap: number;
  /** A request is not repeated, and a rate limit not waited for, beyond this. */
  giveUp: number;
  /** Added to the wait that a rate limit names, plus up to twice as much at random. */
  ratePad: number;
}

export const HUB_TIMING: HubTiming = {
  connect: 10_000,
  headers: 30_000,
  stall: 30_000,
  backoffBase: 1000,
  backoffCap: 60_000,
  giveUp: 30 * 60_000,
  ratePad: 1000,
};

/** Who is told of what a request went through. Texts may hold a token or a signed URL: `redact` them. */
export interface HubReporter {
  /** An attempt failed and is repeated, if any are left. */
  retried(problem: string): void;
  log(level: "info" | "warn", message: string): void;
}

export interface ClientSettings {
  /** First part of the User-Agent, `name/version`. */
  client: string;
  /** As `chooseEndpoint` gives it. */
  endpoint: string;
  /** Connections to one host of file bodies; default 1. */
  connections?: number;
  /** Hosts that may serve bodies for the default endpoint, beside the known ones. */
  cdnHosts?: readonly string[];
  timing: HubTiming;
  /** Instead of the system's resolution of names. */
  lookup?: LookupFunction | undefined;
}
