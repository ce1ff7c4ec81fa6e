import { open, stat } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { makeDirectory, renameDurably, type SnapshotFile, throwIfAborted } from "@k3/stage";
import { hfPartials } from "./hf-layout.ts";
import { writeAdoptedJournal } from "./part-journal.ts";
import { partName, partsDirectory } from "./paths.ts";
import type { Run } from "./run.ts";

/**
 * Takes over what an interrupted `hf download --local-dir` left of these files: the whole segments of the longest partial
 * file but the last, as its tail may be torn. Its writer wrote in order, as far as is known; the hash of the whole file
 * decides, and when it does not match only the adopted segments are fetched again.
 */
export async function adoptPartials(run: Run, files: readonly SnapshotFile[]): Promise<void> {
  const { dir, segmentBytes } = run.settings;
  const parts = partsDirectory(dir);
  await makeDirectory(parts);
  for (const file of files) {
    const path = join(parts, `${partName(file)}.part`);
    if (await stat(path).catch(() => undefined)) continue;
    const best = (await hfPartials(dir, file)).find((partial) => partial.size <= file.size);
    const segments = best ? Math.floor(best.size / segmentBytes) - 1 : 0;
    if (!best || segments <= 0) continue;
    const bytes = segments * segmentBytes;
    run.report.begin(`reading what hf left of ${file.path}`, bytes);
    const crcs = await segmentCrcs(run, best.path, segments);
    // The journal first. The full size comes when it is opened: in hf's own directory such a file would pass for complete.
    await writeAdoptedJournal(parts, file, segmentBytes, crcs);
    await renameDurably(best.path, path);
    run.report.log("info", `${file.path}: going on from ${bytes} bytes that hf left`);
  }
}

async function segmentCrcs(run: Run, path: string, segments: number): Promise<number[]> {
  const { segmentBytes } = run.settings;
  const buffer = Buffer.allocUnsafe(Math.min(1024 * 1024, segmentBytes));
  const crcs: number[] = [];
  const handle = await open(path, "r");
  try {
    for (let segment = 0; segment < segments; segment++) {
      let crc = 0;
      for (let done = 0; done < segmentBytes; ) {
        throwIfAborted(run.signal);
        const want = Math.min(buffer.length, segmentBytes - done);
        const { bytesRead } = await handle.read(buffer, 0, want, segment * segmentBytes + done);
        if (bytesRead === 0) return crcs;
        crc = crc32(buffer.subarray(0, bytesRead), crc);
        done += bytesRead;
        run.report.meter.add(bytesRead);
      }
      crcs.push(crc);
    }
  } finally {
    await handle.close();
  }
  return crcs;
}
