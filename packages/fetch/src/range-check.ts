import { headerText, parseContentRange, parseCount, type Reply } from "@k3/hub";

/** What to do with the answer to a request for bytes [first, last] of a file of `size` bytes. */
export type Verdict =
  /** The body is exactly these bytes. */
  | { kind: "accept" }
  /** The host sent the whole file although a range was asked for. */
  | { kind: "whole" }
  /** Not what was asked for: drop the body and ask again, with a fresh URL. */
  | { kind: "reject"; why: string }
  /** The URL is refused: its signature is invalid or expired. */
  | { kind: "refused" }
  /** Busy or failing for the moment. */
  | { kind: "transient"; why: string }
  /** The host says that the file has another size: no retry helps. */
  | { kind: "contradiction"; why: string };

/**
 * Judges status and headers. Bytes are accepted only when nothing leaves a doubt which bytes they are: 206 with exactly the
 * range and total asked for, no content coding, a fitting length. (A 200 that carries the exact Content-Range is one too;
 * modelscope_hub#50. When all of the file was asked for, a plain 200 of the right length is right.)
 */
export function judge(
  reply: Pick<Reply, "status" | "headers">,
  first: number,
  last: number,
  size: number,
): Verdict {
  const { status, headers } = reply;
  if (status === 400 || status === 401 || status === 403 || status === 404 || status === 410) {
    return { kind: "refused" };
  }
  const rangeText = headerText(headers, "content-range");
  const range = parseContentRange(rangeText);
  if (status === 416) {
    if (range?.kind === "unsatisfied" && range.total !== size) {
      return { kind: "contradiction", why: `the host says the file has ${range.total} bytes, not ${size}` };
    }
    return { kind: "reject", why: "416 for a range inside the file" };
  }
  if (status === 408 || status === 425 || status === 429 || status >= 500) {
    return { kind: "transient", why: `status ${status}` };
  }
  if (status !== 200 && status !== 206) return { kind: "reject", why: `status ${status}` };

  const coding = headerText(headers, "content-encoding")?.trim().toLowerCase();
  if (coding && coding !== "identity") return { kind: "reject", why: `the body is coded with ${coding}` };
  const lengthText = headerText(headers, "content-length");
  const length = parseCount(lengthText);
  if (lengthText !== undefined && length === undefined)
    return { kind: "reject", why: "a malformed Content-Length" };
  const wanted = last - first + 1;
  if (rangeText === undefined) {
    if (status === 206) return { kind: "reject", why: "206 without Content-Range" };
    if (length !== undefined && length !== size) {
      return { kind: "reject", why: `200 with ${length} bytes instead of ${size}` };
    }
    return wanted === size ? { kind: "accept" } : { kind: "whole" };
  }
  if (range?.kind !== "range" || range.first !== first || range.last !== last || range.total !== size) {
    if (status === 200) return { kind: "whole" };
    return { kind: "reject", why: `Content-Range "${rangeText}" instead of bytes ${first}-${last}/${size}` };
  }
  if (length !== undefined && length !== wanted) {
    return { kind: "reject", why: `Content-Length ${length} for a range of ${wanted} bytes` };
  }
  return { kind: "accept" };
}
