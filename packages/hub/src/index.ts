export { backoffMs, hopelessNetworkError, networkReason, pause } from "./backoff.ts";
export { chooseEndpoint, DEFAULT_ENDPOINT, normaliseEndpoint, requireRepoName } from "./endpoint.ts";
export {
  type ContentRange,
  type HeaderMap,
  headerText,
  type Link,
  parseContentRange,
  parseCount,
  parseETag,
  parseLink,
  parseRateLimit,
  parseRetryAfter,
  type RateLimit,
  signedUrlSeconds,
} from "./headers.ts";
export { type Ask, HttpClient, type Reply } from "./http-client.ts";
export { discard, Hub } from "./hub.ts";
export {
  type Commit,
  type HfTreeFile,
  type Listing,
  listSnapshot,
  MAX_PLAIN_BYTES,
  resolveRevision,
} from "./listing.ts";
export { localPath, requireSafePaths, unsafePath } from "./paths.ts";
export { RateGate } from "./rate-gate.ts";
export { type ClientSettings, HUB_TIMING, type HubReporter, type HubTiming } from "./settings.ts";
export { findToken, redact, redactError, shownUrl } from "./token.ts";
