import type { SnapshotFile } from "@k3/stage";
import type { Run } from "./run.ts";
import { FileLocation, type Location } from "./signed-urls.ts";

/** Where the bytes of one file come from, and how its host has behaved so far. */
export class FileSource {
  readonly file: SnapshotFile;
  readonly location: FileLocation;
  /** Entity tags of the file by host: those accepted, and a new one that waits for the Hub's confirmation. */
  readonly etags = new Map<
    string,
    { accepted: Set<string>; proposed: { etag: string; location: Location } | undefined }
  >();
  /** `stream`: its host does not do ranges, so one connection takes it from the start. `restream`: about to. */
  mode: "ranges" | "restream" | "stream" = "ranges";
  /** Answers that were not what was asked for, since bytes came last. */
  deviations = 0;
  #wholeAnswers = 0;

  constructor(run: Run, revision: string, file: SnapshotFile) {
    this.file = file;
    const { repo, timing } = run.settings;
    this.location = new FileLocation(run.hub, { repo, revision, file }, timing, run.report, run.signal);
  }

  /** The host answered a range request with the whole file: once may be chance, twice is a host without ranges. */
  wholeFileSent(): void {
    if (++this.#wholeAnswers >= 2 && this.mode === "ranges") this.mode = "restream";
  }

  /** Everything received was wrong: what was believed of the source is to be established anew. */
  distrust(): void {
    this.etags.clear();
    this.location.forget();
  }
}
