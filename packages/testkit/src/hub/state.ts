import { createHash } from "node:crypto";
import type { BlackHole } from "./black-hole.ts";
import type { HubFile } from "./content.ts";
import type { FaultBoard } from "./faults.ts";
import type { Pace } from "./pace.ts";
import type { RateLimiter } from "./rate.ts";
import type { Repository } from "./repository.ts";
import type { UrlSigner } from "./signed-url.ts";

/** What the three hosts of one loopback Hub share. */
export interface HubState {
  repositories: Map<string, Repository>;
  /** Old names of renamed repositories. */
  renamed: Map<string, string>;
  /** Valid tokens, or null when any will do. */
  tokens: ReadonlySet<string> | null;
  pageSize: number;
  ttlMs: number;
  xet: boolean;
  faults: FaultBoard;
  pace: Pace;
  limiter: RateLimiter;
  signer: UrlSigner;
  /** What the CDN can serve: object id to file, filled as redirects are given out. */
  objects: Map<string, HubFile>;
  cdnOrigin: string;
  /** The CDN without TLS; the same as cdnOrigin on a plain server. */
  plainCdnOrigin: string;
  otherOrigin: string;
  blackHole: () => Promise<BlackHole>;
}

/** A stand-in for the Xet Merkle hash: 64 hex digits that are not the SHA-256 of anything a client has. */
export const xetHash = (sha256: string) => createHash("sha256").update(`xet ${sha256}`).digest("hex");

/** The storage's ETag: it looks like a SHA-256 and is not the content's. */
export const storageEtag = (sha256: string) => createHash("sha256").update(`storage ${sha256}`).digest("hex");
