import {
  discard,
  type HeaderMap,
  type Hub,
  headerText,
  parseCount,
  parseETag,
  pause,
  type Reply,
  shownUrl,
  signedUrlSeconds,
} from "@k3/hub";
import { expectedHash, formatSeconds, type SnapshotFile, StageError } from "@k3/stage";

import type { Timing } from "./options.ts";
import type { Report } from "./report.ts";

export interface Location {
  url: URL;
  /** `performance.now()` at which it should not be used for new requests any more; infinite when it never expires. */
  goodUntil: number;
}

/**
 * Where the body of one file is to be had. The Hub is asked once, by HEAD, and again when the signed URL is about to
 * expire or was refused; connections that need it at the same time share one request.
 */
export class FileLocation {
  readonly #hub: Hub;
  readonly #repo: string;
  readonly #revision: string;
  readonly #file: SnapshotFile;
  readonly #margin: number;
  readonly #waits: readonly number[];
  readonly #report: Report;
  readonly #signal: AbortSignal;
  #current: Location | undefined;
  #pending: Promise<Location> | undefined;
  #refusals = 0;
  /** `performance.now()` before which the Hub is not asked again. */
  #notBefore = 0;

  constructor(
    hub: Hub,
    target: { repo: string; revision: string; file: SnapshotFile },
    timing: Pick<Timing, "refreshMargin" | "refreshWaits">,
    report: Report,
    signal: AbortSignal,
  ) {
    this.#hub = hub;
    this.#repo = target.repo;
    this.#revision = target.revision;
    this.#file = target.file;
    this.#margin = timing.refreshMargin;
    this.#waits = timing.refreshWaits;
    this.#report = report;
    this.#signal = signal;
  }

  async get(): Promise<Location> {
    if (this.#current && performance.now() < this.#current.goodUntil) return this.#current;
    this.#pending ??= this.#locate().finally(() => {
      this.#pending = undefined;
    });
    return this.#pending;
  }

  /** The host refused `used` or served something odd there: the next `get` asks the Hub, unless that has been done since. */
  discard(used: Location): void {
    if (this.#current === used) this.#current = undefined;
  }

  forget(): void {
    this.#current = undefined;
  }

  /**
   * As `discard`, for a refusal of the signature. Each in a row is waited for longer before the Hub is asked again, as a host
   * may be out of order for a minute; throws E_HUB when the last fresh URL was refused, too. Gives the milliseconds that
   * `get` will wait.
   */
  refused(used: Location, status: number): number {
    if (this.#current !== used) return Math.max(0, this.#notBefore - performance.now());
    this.#current = undefined;
    const refused = `${used.url.host} refuses ${this.#file.path} (${status})`;
    const wait = this.#waits[this.#refusals++];
    if (wait !== undefined) {
      this.#notBefore = performance.now() + wait;
      this.#report.log("info", `${refused}: asking for a fresh URL in ${formatSeconds(wait / 1000)}`);
      return wait;
    }
    throw new StageError("E_HUB", `${refused} although its URL was renewed ${this.#waits.length} times`, {
      hint: "check the clock of this machine and whether a firewall or proxy blocks that host",
    });
  }

  /** New bytes came: earlier refusals no longer count. */
  progressed(): void {
    this.#refusals = 0;
  }

  async #locate(): Promise<Location> {
    await pause(this.#notBefore - performance.now(), this.#signal);
    const path = this.#file.path.split("/").map(encodeURIComponent).join("/");
    const url = new URL(`${this.#hub.endpoint}/${this.#repo}/resolve/${this.#revision}/${path}`);
    // In the middle of a long job the Hub may be away for minutes: only the time to give up ends that.
    const reply = await this.#hub.call(
      url,
      { method: "HEAD", foreign: "stop" },
      { attempts: Number.POSITIVE_INFINITY },
    );
    discard(reply);
    this.#check(reply);
    const target = reply.redirectedTo ?? reply.url;
    const goodUntil = this.#goodUntil(target, reply.headers);
    this.#current = { url: target, goodUntil };
    return this.#current;
  }

  #goodUntil(url: URL, headers: HeaderMap): number {
    const serverNow = Date.parse(headerText(headers, "date") ?? "");
    const seconds = signedUrlSeconds(url, Number.isNaN(serverNow) ? Date.now() : serverNow);
    if (seconds === undefined) return Number.POSITIVE_INFINITY;
    const life = Math.max(0, seconds * 1000);
    return performance.now() + life - Math.min(this.#margin, life / 4);
  }

  /** What the Hub says of the file must be what the manifest says; a mirror that says nothing leaves it to the hash. */
  #check(reply: Reply): void {
    const said = [...reply.hops, reply.headers];
    const header = (name: string) => said.map((headers) => headerText(headers, name)).find((text) => text);
    const etag = parseETag(header("x-linked-etag"));
    const size = header("x-linked-size");
    const commit = header("x-repo-commit");
    const { algorithm, hash } = expectedHash(this.#file);
    const contradiction =
      (etag !== undefined && algorithm === "sha256" && etag !== hash && `hash ${etag}`) ||
      (size !== undefined && parseCount(size) !== this.#file.size && `size ${size}`) ||
      (commit !== undefined && commit !== this.#revision && `commit ${commit}`);
    if (contradiction) {
      throw new StageError(
        "E_HUB",
        `${shownUrl(reply.url)} now has ${contradiction}, which is not what the listing of ${this.#revision} said`,
        { hint: "a commit cannot change: the endpoint or a cache on the way is broken" },
      );
    }
    if (reply.redirectedTo && (etag === undefined || size === undefined)) {
      this.#report.logOnce(
        "warn",
        `${new URL(this.#hub.endpoint).host} does not repeat size and hash when it redirects; the listing's are used`,
      );
    }
  }
}
