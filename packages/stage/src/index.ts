export { alignedBuffers } from "./aligned.ts";
export { makeDirectory, renameDurably, syncDirectory, writeFileAtomically } from "./atomic.ts";
export {
  type ErrorCode,
  EXIT,
  type ExitCode,
  StageError,
  type StageErrorOptions,
  throwIfAborted,
  toStageError,
} from "./errors.ts";
export {
  type LogEvent,
  Meter,
  type OnEvent,
  type ProgressEvent,
  type StageEvent,
  type StageOptions,
} from "./events.ts";
export { encodeRecord, Journal, readJournal } from "./journal.ts";
export { type Lock, lockFile } from "./lock.ts";
export {
  expectedHash,
  parseChecked,
  parseSnapshot,
  readOptional,
  readSnapshot,
  type Snapshot,
  type SnapshotFile,
  STATE_DIRECTORY,
  selectedFiles,
  snapshotPath,
  writeSnapshot,
} from "./manifest.ts";
export { loadNativeAddon, type NativeAddonPlaces } from "./native-addon.ts";
export { formatBytes, formatSeconds, parseRate, parseSize } from "./quantities.ts";
export {
  CHUNK_BYTES,
  type FileIdentity,
  fileIdentity,
  type HashRecord,
  hashJournalPath,
  hashRecord,
  type Receipt,
  readReceipt,
  receiptPath,
  sameIdentity,
  writeReceipt,
} from "./receipt.ts";
export { readRegularFile } from "./regular-file.ts";
export { shellWord } from "./shell.ts";
export { availableBytes, nearestDirectory, requireSpace } from "./space.ts";
export { runAtOnce, runInSlices, type Steps } from "./steps.ts";
