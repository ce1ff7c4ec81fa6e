import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout } from "node:timers/promises";
import { expect, it } from "vitest";
import { settle } from "../src/options.ts";
import { SEGMENT } from "../src/part-journal.ts";
import { Report } from "../src/report.ts";
import { Run } from "../src/run.ts";
import type { FileSource } from "../src/source.ts";
import { SpanWriter } from "../src/span-writer.ts";
import { transfer } from "../src/transfer.ts";
import { atEnd, KIB, temporary, testOptions } from "./support.ts";

const content = Buffer.from(Array.from({ length: 64 * KIB }, (_, i) => (i * 31) >> 3));
/** The span asked for: the first half of the content, in one segment. */
const END = 32 * KIB;

/** Takes the span from a host that sends exactly it, without a length, and then does something else. */
async function takeFrom(afterwards: (response: ServerResponse) => void) {
  const asked: (string | undefined)[] = [];
  const server = createServer(async (request, response) => {
    asked.push(request.headers.range);
    const range = `bytes 0-${END - 1}/${content.length}`;
    response.writeHead(206, { "content-range": range });
    response.write(content.subarray(0, END));
    await setTimeout(50);
    afterwards(response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const settings = settle(testOptions({ endpoint }, await temporary()));
  const run = new Run(settings, new Report(undefined, undefined, 4), undefined, undefined);
  atEnd(async () => {
    await run.close();
    server.closeAllConnections();
    server.close();
  });
  const written = Buffer.alloc(END);
  const target = {
    segmentBytes: END,
    state: new Uint8Array(2),
    start: (segment: number) => segment * END,
    length: () => END,
    write: async (data: Buffer, position: number) => {
      data.copy(written, position);
    },
    prefix: () => undefined,
    markPrefix: () => undefined,
    markWritten: (segment: number) => {
      target.state[segment] = SEGMENT.written;
    },
    checkpoint: async () => undefined,
  };
  const source = {
    file: { path: "model.safetensors", size: content.length },
    mode: "ranges",
    etags: new Map(),
    deviations: 0,
    location: {
      get: async () => ({ url: new URL(endpoint) }),
      progressed: () => undefined,
      discard: () => undefined,
    },
  } as unknown as FileSource;
  const writer = new SpanWriter(run, target, { start: 0, end: END }, () => undefined);
  const outcome = await transfer(run, source, writer);
  await writer.leave();
  return { outcome, asked, written, state: target.state[0] };
}

const afterwards: [string, (response: ServerResponse) => void][] = [
  ["a piece too many", (response) => response.end("more")],
  ["a reset", (response) => response.socket!.resetAndDestroy()],
];

it.each(afterwards)("a span is done with its last byte, though %s comes after it", async (_name, after) => {
  const { outcome, asked, written, state } = await takeFrom(after);
  expect(outcome).toBe("done");
  expect(asked).toEqual([`bytes=0-${END - 1}`]);
  expect(written.equals(content.subarray(0, END))).toBe(true);
  expect(state).toBe(SEGMENT.written);
});
