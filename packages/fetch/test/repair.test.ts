import { open, readFile, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { CHUNK_BYTES, fileIdentity, type Receipt, readReceipt, writeReceipt } from "@k3/stage";
import { fileBytes, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  expectComplete,
  failure,
  MIB,
  run,
  sentFor,
  serve,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const files = [
  syntheticFile("a.safetensors", 66 * MIB + 5, { seed: 1 }),
  syntheticFile("b.safetensors", 1 * MIB, { seed: 2 }),
];
const BIG = files[0]!;
/** The second chunk of the big file is a short one. */
const TAIL = 2 * MIB + 5;
const internals = { segmentBytes: 16 * MIB };

/** A complete directory with a receipt, as a clean verification leaves it. */
async function verified() {
  const hub = await serve(files);
  const dir = await temporary();
  const { result } = await run(hub, dir, { internals });
  const receipt: Receipt = {
    format: "k3-receipt",
    version: 1,
    repo: result.repo,
    revision: result.revision,
    chunkBytes: CHUNK_BYTES,
    files: await Promise.all(
      files.map(async (file) => {
        const bytes = await fileBytes(file);
        const crcs: number[] = [];
        for (let at = 0; at < bytes.length; at += CHUNK_BYTES)
          crcs.push(crc32(bytes.subarray(at, at + CHUNK_BYTES)));
        return {
          path: file.path,
          identity: fileIdentity(await stat(join(dir, file.path), { bigint: true })),
          algorithm: "sha256" as const,
          hash: (await file.hashes()).sha256!,
          how: "journal" as const,
          crc32: crcs,
        };
      }),
    ),
    damaged: [],
  };
  await writeReceipt(dir, receipt);
  hub.clearLog();
  return { hub, dir, receipt };
}

async function damage(dir: string, at: number): Promise<void> {
  const handle = await open(join(dir, BIG.path), "r+");
  await handle.write("damage", at);
  await handle.close();
}

describe("repair", () => {
  it("fetches only the damaged chunk, patches it in, and says so in receipt and journal", async () => {
    const { hub, dir, receipt } = await verified();
    await damage(dir, CHUNK_BYTES + 12345);
    await writeReceipt(dir, { ...receipt, damaged: [{ path: BIG.path, chunks: [1] }] });
    const other = await stat(join(dir, "b.safetensors"));
    const { result } = await run(hub, dir, { repair: true, internals });
    expect(result).toMatchObject({ files: 1, downloaded_bytes: TAIL, verified: true });
    expect(sentFor(hub, BIG.path)).toBe(TAIL);
    await expectComplete(dir, files);
    expect((await stat(join(dir, "b.safetensors"))).ctimeMs).toBe(other.ctimeMs);
    const after = (await readReceipt(dir))!;
    expect(after.damaged).toEqual([]);
    const entry = after.files.find((file) => file.path === BIG.path)!;
    expect(entry.identity).toEqual(fileIdentity(await stat(join(dir, BIG.path), { bigint: true })));
    expect(entry.crc32).toEqual(receipt.files[0]!.crc32);
    // And fetch knows it too: nothing is hashed or fetched again.
    hub.clearLog();
    const again = await run(hub, dir, { internals });
    expect(again.messages.join("\n")).toMatch(/already here/);
  });

  it("finds the chunks that the receipt did not name, from its CRC-32s, and repairs them too", async () => {
    const { hub, dir, receipt } = await verified();
    await damage(dir, 5);
    await damage(dir, CHUNK_BYTES + 1);
    await writeReceipt(dir, { ...receipt, damaged: [{ path: BIG.path, chunks: [1] }] });
    const { result } = await run(hub, dir, { repair: true, internals });
    expect(result.downloaded_bytes).toBe(BIG.size);
    await expectComplete(dir, files);
  });

  it("without a receipt's entry, the CRC-32s that fetch recorded while downloading locate the damage", async () => {
    const { hub, dir, receipt } = await verified();
    await damage(dir, CHUNK_BYTES + 1);
    await writeReceipt(dir, { ...receipt, files: [], damaged: [{ path: BIG.path, chunks: [1] }] });
    hub.setFaults({ flipByteAt: { bytes: CHUNK_BYTES + 1000, count: 1 } });
    const { result } = await run(hub, dir, { repair: true, internals });
    expect(result.downloaded_bytes).toBe(2 * TAIL); // the first answer had a wrong byte, and was not patched in
    await expectComplete(dir, files);
  });

  it("a source that sends other bytes for the chunk changes nothing on the disk", async () => {
    const { hub, dir, receipt } = await verified();
    await damage(dir, CHUNK_BYTES + 70_000);
    await writeReceipt(dir, { ...receipt, damaged: [{ path: BIG.path, chunks: [1] }] });
    const before = await readFile(join(dir, BIG.path));
    hub.setFaults({ flipByteAt: { bytes: CHUNK_BYTES + 1000 } });
    expect(await failure(hub, dir, { repair: true, internals })).toMatchObject({ code: "E_DATA", exit: 3 });
    expect((await readFile(join(dir, BIG.path))).equals(before)).toBe(true);
    expect((await readReceipt(dir))!.damaged).toEqual([{ path: BIG.path, chunks: [1] }]);
    hub.clearFaults();
    await run(hub, dir, { repair: true, internals });
    await expectComplete(dir, files);
  });

  it("a repair that is killed can be repeated", async () => {
    const { hub, dir, receipt } = await verified();
    await damage(dir, 70_000);
    await writeReceipt(dir, { ...receipt, damaged: [{ path: BIG.path, chunks: [0] }] });
    hub.setFaults({ bps: 40 * MIB });
    const child = spawnRun(testOptions(hub, dir, { repair: true, internals }));
    await child.event((e) => e.type === "progress" && e.phase.startsWith("repairing") && e.done > 8 * MIB);
    child.child.kill("SIGKILL");
    await child.ended;
    hub.clearFaults();
    await run(hub, dir, { repair: true, internals });
    await run(hub, dir, { internals });
    await expectComplete(dir, files);
  });

  it("a plain fetch repairs what the receipt names as well, and re-fetches a file that is beyond it", async () => {
    const { hub, dir, receipt } = await verified();
    await damage(dir, CHUNK_BYTES + 70_000);
    await writeReceipt(dir, { ...receipt, damaged: [{ path: BIG.path, chunks: [1] }] });
    expect((await run(hub, dir, { internals })).result.downloaded_bytes).toBe(TAIL);
    await expectComplete(dir, files);
    await rm(join(dir, BIG.path));
    await writeReceipt(dir, { ...receipt, damaged: [{ path: BIG.path, chunks: [0] }] });
    expect(await failure(hub, dir, { repair: true, internals })).toMatchObject({ code: "E_DATA" });
    expect((await run(hub, dir, { internals })).result.downloaded_bytes).toBe(BIG.size);
    expect((await readReceipt(dir))!.damaged).toEqual([]);
    await expectComplete(dir, files);
  });

  it("with nothing damaged it says so and asks nobody", async () => {
    const { hub, dir } = await verified();
    const { result, messages } = await run(hub, dir, { repair: true, internals });
    expect(result).toMatchObject({ files: 0, downloaded_bytes: 0 });
    expect(messages.join("\n")).toContain("nothing is damaged");
    expect(hub.requests).toEqual([]);
    expect(await failure(hub, await temporary(), { repair: true })).toMatchObject({ code: "E_USAGE" });
  });
});
