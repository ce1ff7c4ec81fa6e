export { type BlackHole, startBlackHole } from "./hub/black-hole.ts";
export {
  bytesFile,
  directoryFiles,
  type FileHashes,
  fileBytes,
  gitBlobSha1,
  type HubFile,
  lfsPointer,
  syntheticFile,
} from "./hub/content.ts";
export type { RequestRecord, Where } from "./hub/exchange.ts";
export type { FaultName, Faults, Switch, When } from "./hub/faults.ts";
export { type Hub, type HubOptions, startHub } from "./hub/hub.ts";
export type { Bucket, RateLimit } from "./hub/rate.ts";
export { type Commit, Repository, type RepositoryOptions } from "./hub/repository.ts";
export { type ServeDirectoryOptions, serveDirectory } from "./hub/serve-directory.ts";
export type { Signing } from "./hub/signed-url.ts";
export { Random } from "./random.ts";
