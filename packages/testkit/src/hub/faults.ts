/** When a fault strikes. Without anything it strikes every time. */
export interface When {
  /** How many times; then the fault is spent. */
  count?: number;
  /** How many matching requests pass unharmed first. */
  skip?: number;
  /** Only requests for files whose path contains this. */
  path?: string;
}

/** `true` is every time, a number is so many times. */
export type Switch = boolean | number | When;

/**
 * What can go wrong, after failures seen in the field. All can be set, changed and cleared while the Hub runs. Byte
 * positions are in the file, except `cutAfter`, which counts the bytes of one body.
 */
export interface Faults {
  /** Closes the connection after so many body bytes of every response longer than that (`reset` sends RST instead of FIN). */
  cutAfter?: When & { bytes: number; reset?: boolean };
  /** Sends the file's bytes up to this position, then nothing, with the connection open. */
  stallAt?: When & { bytes: number };
  /** Bytes per second over all connections of the server, file bodies only: 125e6 is a link of 1 Gbit/s. */
  bps?: number;
  /** How long signed URLs made from now on live. */
  ttlMs?: number;
  /** Answers a range request with 200 and the whole file. */
  ignoreRange?: Switch;
  /** Answers 206 with a range that starts so many bytes (default 1) before the asked one. */
  shiftRange?: Switch | (When & { bytes: number });
  /** Answers a range request with 200, the right Content-Range and the right bytes. */
  rangeAs200?: Switch;
  /** The CDN compresses and ignores Range when the client accepts gzip. */
  gzipWhenAsked?: Switch;
  /** The total in Content-Range is off by so many bytes (default 1). */
  wrongTotal?: Switch | (When & { bytes: number });
  /** Sends a range chunked, without Content-Length, and ends it properly `bytes` (default 1) after its end, or before it if negative. */
  wrongLength?: Switch | (When & { bytes: number });
  /** `X-Linked-ETag` names another content. */
  wrongEtag?: Switch;
  /** `X-Linked-Size` is off by one. */
  wrongSize?: Switch;
  /** The storage's ETag changes in the second half of a file. */
  etagChangesMidFile?: Switch;
  /** Inverts the byte at this position of the file. */
  flipByteAt?: When & { bytes: number };
  /** Answers 416 to a satisfiable range. */
  spurious416?: Switch;
  /** A login page with status 200 instead of the file. */
  htmlInstead?: Switch;
  /** The Hub answers 429: `r` left, `t` seconds until the window ends, and perhaps Retry-After (seconds or a date). */
  hub429?: When & { r?: number; t?: number; retryAfter?: number | string; bucket?: "api" | "resolvers" };
  hub503?: Switch;
  cdn503?: Switch;
  cdn400?: Switch;
  /** The CDN refuses requests that carry an Authorization header with 400, as S3 does. */
  cdnRejectsAuth?: Switch;
  /** Resolve redirects to itself for ever. */
  redirectLoop?: Switch;
  /** Resolve redirects to another host: `true` is the third host of this server. */
  locationHost?: string | true;
  /** The redirect of a TLS Hub points to plain http. */
  downgradeHttp?: Switch;
  /** `Link: rel="next"` points to another host: `true` is the third host of this server, which serves an empty list. */
  linkHost?: string | true;
  /** `Link: rel="next"` points to the page just served. */
  linkRepeatCursor?: Switch;
  /** The second page of the tree fails with 500. */
  page2_500?: Switch;
  /** The tree ends without its last entries (default 1), and nothing says so. */
  shortTree?: number;
  /** Leaves out X-Linked-*, X-Repo-Commit and, for plain files, ETag and Content-Length, as some mirrors do. */
  missingLinked?: Switch;
  /** The redirect leads to an address that never answers a SYN. */
  acceptQueueFull?: Switch;
  /** Extra names in the tree, as an attacker would choose them: `../x`, `C:\\x`, `/etc/x`. */
  unsafePaths?: readonly string[];
}

export type FaultName = keyof Faults;

/** The faults in force, and how often each has struck. */
export class FaultBoard {
  #faults: Faults = {};
  readonly #struck = new Map<FaultName, number>();
  readonly #seen = new Map<FaultName, number>();

  /** Merges; `undefined` or `false` clears one. Setting a fault starts its counts anew. */
  set(faults: { [Name in FaultName]?: Faults[Name] | undefined }): void {
    for (const name of Object.keys(faults) as FaultName[]) {
      this.#struck.delete(name);
      this.#seen.delete(name);
      if (faults[name] === undefined || faults[name] === false) delete this.#faults[name];
      else this.#faults = { ...this.#faults, [name]: faults[name] };
    }
  }

  clear(): void {
    this.#faults = {};
    this.#struck.clear();
    this.#seen.clear();
  }

  /** The setting itself, without counting. */
  get<Name extends FaultName>(name: Name): Faults[Name] {
    return this.#faults[name];
  }

  /** How often a fault has struck since it was set. */
  struck(name: FaultName): number {
    return this.#struck.get(name) ?? 0;
  }

  /** The fault's setting when it strikes this request, which then counts; else undefined. */
  take<Name extends FaultName>(name: Name, path?: string): NonNullable<Faults[Name]> | undefined {
    const fault = this.#faults[name];
    if (fault === undefined) return undefined;
    const when: When =
      typeof fault === "object" && !Array.isArray(fault)
        ? (fault as When)
        : typeof fault === "number"
          ? { count: fault }
          : {};
    if (when.path !== undefined && !path?.includes(when.path)) return undefined;
    const seen = (this.#seen.get(name) ?? 0) + 1;
    this.#seen.set(name, seen);
    if (seen <= (when.skip ?? 0)) return undefined;
    const struck = this.#struck.get(name) ?? 0;
    if (when.count !== undefined && struck >= when.count) return undefined;
    this.#struck.set(name, struck + 1);
    return fault;
  }
}
