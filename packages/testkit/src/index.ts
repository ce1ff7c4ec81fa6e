export { BytePairs } from "./byte-pairs.ts";
export { type Needed, python, sharedDir, title, withTempDir } from "./environment.ts";
export { type BlackHole, startBlackHole } from "./hub/black-hole.ts";
export { loopbackCertificate } from "./hub/certificate.ts";
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
export { END_OF_MESSAGE, SPECIALS as MINIATURE_SPECIALS } from "./miniature/architecture.ts";
export { DEFAULT_SEED as MINIATURE_SEED } from "./miniature/fingerprint.ts";
export { type Miniature, type MiniatureOptions, makeMiniature } from "./miniature/make.ts";
export { miniatureSamples, miniatureVocabulary, type Sample } from "./miniature/samples.ts";
export {
  type Conversation,
  type Message,
  MINIATURE_CONVERSATIONS,
  MINIATURE_SENTENCES,
  MINIATURE_TOOLS,
  type Sentence,
  type ToolCall,
} from "./miniature/sentences.ts";
export { Random } from "./random.ts";
export type { Routing } from "./reference/feed-forward.ts";
export {
  type Generation,
  leading,
  ReferenceModel,
  type ReferenceOptions,
  referenceForward,
} from "./reference/model.ts";
export {
  decodeMxfp4,
  type RawTensor,
  RawWeights,
  readShard,
  readWeights,
  type Weights,
} from "./reference/weights.ts";
