import type { StructureFaultKind } from "@k3/checkpoint";
import type { StageOptions } from "@k3/stage";

/** How much is checked; each level includes the ones before it. */
export type VerifyLevel = "sizes" | "structure" | "hashes";

export interface VerifyOptions extends StageOptions {
  dir: string;
  /** Default "hashes". */
  level?: VerifyLevel | undefined;
  /** Take sizes and hashes from this repository of the Hub, at `revision`, a full commit. */
  repo?: string | undefined;
  revision?: string | undefined;
  /** Take them from this file: our snapshot manifest, or a tree file of `hf` (`.cache/huggingface/trees/COMMIT.json`). */
  manifest?: string | undefined;
  /** The Hub to ask; default HF_ENDPOINT, else https://huggingface.co. */
  endpoint?: string | undefined;
  /** An access token; default HF_TOKEN or the usual login file. Sent to the endpoint's origin only. */
  token?: string | undefined;
  /** Files that the repository does not have are faults, not remarks. */
  failOnExtra?: boolean | undefined;
  /** Read every file from the disk, also those that are unchanged since they were read. */
  recheck?: boolean | undefined;
  /** Compare with the receipt of the last clean pass, chunk by chunk, and record what is damaged. */
  sinceReceipt?: boolean | undefined;
  /** Files hashed at a time; default 1, which is what one disk wants. */
  jobs?: number | undefined;
}

export type VerifyFaultKind =
  | StructureFaultKind
  | "size"
  | "dangling-symlink"
  | "not-a-file"
  | "hash"
  | "changed"
  | "damaged"
  | "extra-file";

export interface VerifyFault {
  /** Path inside the model directory. */
  path: string;
  kind: VerifyFaultKind;
  /** The tensor at fault, for faults of the structure. */
  tensor?: string;
  expected: string;
  found: string;
  /** What to do next. */
  hint?: string;
}

export interface VerifyResult {
  /** No fault in what was asked for. */
  ok: boolean;
  /** Whether all weight files of the repository were asked for: a partial download can be ok and not complete. */
  complete: boolean;
  level: VerifyLevel;
  repo: string | null;
  revision: string | null;
  /** Files that were checked at this level, and their bytes as they should be. */
  checked: number;
  bytes: number;
  /** Bytes read and hashed in this run. */
  bytes_read: number;
  /**
   * Those bytes came from the device, read past the page cache (O_DIRECT): all of them. False where the filesystem
   * refuses that, and when nothing was read.
   */
  direct: boolean;
  /** Files whose hash was known from an earlier run, or from the download, and which have not changed since. */
  from_journal: number;
  faults: VerifyFault[];
  /** Files that the repository does not have. */
  extra: string[];
  seconds: number;
}
