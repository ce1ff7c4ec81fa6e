import { type FileHandle, open } from "node:fs/promises";
import { readJournal } from "@k3/stage";
import { expect, it } from "vitest";
import { DiskQueue } from "../src/disk.ts";
import { SEGMENT } from "../src/part-journal.ts";
import { PartFile } from "../src/segments.ts";
import { atEnd, temporary } from "./support.ts";

const SEGMENTS = 40;
const BYTES = 4096;

/** Calls `during` in every sync of a part file, before it ends. */
async function atEachSync(during: () => void): Promise<void> {
  const probe = await open("/dev/null");
  const files = Object.getPrototypeOf(probe) as FileHandle;
  await probe.close();
  const { datasync } = files;
  files.datasync = async function (this: FileHandle) {
    await datasync.call(this);
    during();
  };
  atEnd(async () => {
    files.datasync = datasync;
  });
}

it("who waits for what was marked waits for one sync begun after that, however much is marked meanwhile", async () => {
  const file = { path: "model.safetensors", size: SEGMENTS * BYTES, sha256: "0".repeat(64) };
  const dir = await temporary();
  const errors: unknown[] = [];
  const part = await PartFile.open(dir, file, {
    segmentBytes: BYTES,
    disk: new DiskQueue(),
    onDurable: () => undefined,
    onError: (error) => errors.push(error),
  });
  // Other connections finish a segment in every sync.
  let marked = 0;
  const last = SEGMENTS - 1;
  await atEachSync(() => {
    if (marked < last) part.markWritten(marked, ++marked, BYTES);
  });
  part.markWritten(marked, ++marked, BYTES);
  await new Promise(setImmediate); // that sync is at work
  part.markPrefix(last, { bytes: 100, crc: 7 });
  await part.checkpoint();
  expect(marked).toBeLessThan(10);
  const { records } = await readJournal(`${part.path.slice(0, -".part".length)}.journal`);
  expect(records).toContainEqual({ p: last, n: 100, c: "00000007" });

  const before = marked;
  await part.settle();
  expect(marked).toBeLessThan(before + 10);
  for (let s = 0; s < before; s++) expect(part.state[s]).toBe(SEGMENT.durable);

  marked = last;
  await part.close();
  expect(errors).toEqual([]);
});
