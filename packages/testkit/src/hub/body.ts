import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import type { HubFile } from "./content.ts";
import type { Exchange } from "./exchange.ts";
import type { FaultBoard } from "./faults.ts";
import type { Pace } from "./pace.ts";

interface ByteRange {
  start: number;
  /** One past the last byte. */
  end: number;
}

/** RFC 9110 byte ranges, one range only. `null`: no (usable) Range header; `"unsatisfiable"`: 416. */
export function parseRange(header: string | null, size: number): ByteRange | null | "unsatisfiable" {
  const match = /^bytes=(\d*)-(\d*)$/.exec(header ?? "");
  if (!match || (match[1] === "" && match[2] === "")) return null;
  if (match[1] === "") {
    const length = Math.min(Number(match[2]), size);
    return length === 0 ? "unsatisfiable" : { start: size - length, end: size };
  }
  const start = Number(match[1]);
  const end = match[2] === "" ? size : Math.min(Number(match[2]) + 1, size);
  if (match[2] !== "" && Number(match[2]) < start) return null;
  return start >= size ? "unsatisfiable" : { start, end };
}

/** What serving a body needs beside the file. */
export interface BodyContext {
  faults: FaultBoard;
  pace: Pace;
}

/** Answers GET or HEAD for a file's bytes, with Range, and with whatever faults are in force for bodies. */
export async function sendFile(
  exchange: Exchange,
  file: HubFile,
  etag: string,
  context: BodyContext,
): Promise<void> {
  const { faults } = context;
  if (faults.take("htmlInstead", file.path)) {
    exchange.reply(
      200,
      { "Content-Type": "text/html" },
      "<!doctype html><title>Sign in</title><p>Sign in to this network.",
    );
    return;
  }
  const headers = {
    "Content-Type": "application/octet-stream",
    "Accept-Ranges": "bytes",
    ETag: `"${etag}"`,
  };
  if (exchange.acceptsGzip() && faults.take("gzipWhenAsked", file.path)) {
    await sendGzip(exchange, file, headers);
    return;
  }
  let range = parseRange(exchange.record.range, file.size);
  if (range === "unsatisfiable" || (range !== null && faults.take("spurious416", file.path))) {
    exchange.reply(416, { ETag: headers.ETag, "Content-Range": `bytes */${file.size}` });
    return;
  }
  if (range === null) {
    exchange.begin(200, { ...headers, "Content-Length": file.size });
    await sendBody(exchange, file, { start: 0, end: file.size }, context);
    return;
  }
  if (faults.take("ignoreRange", file.path)) {
    exchange.begin(200, { ...headers, "Content-Length": file.size });
    await sendBody(exchange, file, { start: 0, end: file.size }, context);
    return;
  }
  const shift = faults.take("shiftRange", file.path);
  if (shift) range = { start: Math.max(0, range.start - offBy(shift)), end: range.end };
  if (range.start >= file.size / 2 && faults.take("etagChangesMidFile", file.path)) {
    headers.ETag = `"${etag.split("").reverse().join("")}"`;
  }
  const wrongTotal = faults.take("wrongTotal", file.path);
  const total = file.size + (wrongTotal ? offBy(wrongTotal) : 0);
  const wrongLength = faults.take("wrongLength", file.path);
  exchange.begin(faults.take("rangeAs200", file.path) ? 200 : 206, {
    ...headers,
    "Content-Range": `bytes ${range.start}-${range.end - 1}/${total}`,
    ...(wrongLength ? {} : { "Content-Length": range.end - range.start }),
  });
  if (wrongLength) {
    const end = Math.min(file.size, range.end + offBy(wrongLength));
    range = { start: range.start, end: Math.max(range.start, end) };
  }
  await sendBody(exchange, file, range, context);
}

const offBy = (fault: unknown): number => (fault as { bytes?: number }).bytes ?? 1;

/** Compressed and chunked: no Content-Length, no Range. */
export async function sendGzip(
  exchange: Exchange,
  file: HubFile,
  headers: Record<string, string>,
): Promise<void> {
  exchange.begin(200, { ...headers, "Content-Encoding": "gzip", Vary: "Accept-Encoding" });
  if (exchange.record.method === "HEAD") {
    exchange.response.end();
    return;
  }
  await pipeline(
    file.read(0, file.size),
    createGzip({ level: 1 }),
    async (pieces: AsyncIterable<Uint8Array>) => {
      for await (const piece of pieces) await exchange.write(piece);
    },
  );
  exchange.response.end();
}

/** Pieces under a shaped link: small enough that the rate is smooth. */
const SHAPED_BYTES = 64 * 1024;

async function sendBody(
  exchange: Exchange,
  file: HubFile,
  range: ByteRange,
  context: BodyContext,
): Promise<void> {
  if (exchange.record.method === "HEAD") {
    exchange.response.end();
    return;
  }
  const { faults, pace } = context;
  const cut = faults.get("cutAfter");
  const cutAt =
    cut && range.end - range.start > cut.bytes && faults.take("cutAfter", file.path)
      ? range.start + cut.bytes
      : Infinity;
  const inside = (fault: { bytes: number } | undefined) =>
    fault !== undefined && fault.bytes >= range.start && fault.bytes < range.end;
  const stall = faults.get("stallAt");
  const stallAt = inside(stall) && faults.take("stallAt", file.path) ? stall!.bytes : Infinity;
  const flip = faults.get("flipByteAt");
  const flipAt = inside(flip) && faults.take("flipByteAt", file.path) ? flip!.bytes : Infinity;

  let at = range.start;
  const stopAt = Math.min(range.end, cutAt, stallAt);
  for await (const piece of file.read(range.start, stopAt)) {
    let bytes = piece;
    if (flipAt >= at && flipAt < at + bytes.length) {
      bytes = Uint8Array.from(bytes);
      bytes[flipAt - at]! ^= 0xff;
    }
    for (let sent = 0; sent < bytes.length && exchange.open; ) {
      const bps = faults.get("bps");
      const length = bps === undefined ? bytes.length - sent : Math.min(SHAPED_BYTES, bytes.length - sent);
      if (bps !== undefined) await pace.pass(length, bps);
      await exchange.write(bytes.subarray(sent, sent + length));
      sent += length;
    }
    if (!exchange.open) return;
    at += bytes.length;
  }
  if (at === cutAt) {
    if (cut?.reset) exchange.request.socket.resetAndDestroy();
    else exchange.request.socket.destroySoon();
  } else if (at === range.end) {
    exchange.response.end();
  }
  // At stallAt nothing more happens until the client gives up.
}
