import { open, readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJournal } from "@k3/stage";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  downloading,
  expectComplete,
  KIB,
  MIB,
  run,
  serve,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

const SEGMENT = 256 * KIB;

describe("damage to part files and journals", () => {
  /** A run that is killed half way; gives the paths of its part file and journal. */
  async function halfWay() {
    const files = [syntheticFile("model.safetensors", 8 * MIB, { seed: 9 })];
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ bps: 4 * MIB });
    const first = spawnRun(testOptions(hub, dir, { concurrency: 2 }));
    await first.event(downloading(4 * MIB));
    first.child.kill("SIGKILL");
    await first.ended;
    hub.clearFaults();
    hub.clearLog();
    const parts = join(dir, ".cache/k3/parts");
    const names = await readdir(parts);
    const part = join(parts, names.find((n) => n.endsWith(".part"))!);
    const journal = join(parts, names.find((n) => n.endsWith(".journal"))!);
    return { files, hub, dir, part, journal };
  }

  const recorded = async (journal: string) =>
    (await readJournal(journal)).records.filter((r) => "s" in (r as object)).length;

  it("a flipped byte in a part file costs only its own segment", async () => {
    const { files, hub, dir, part, journal } = await halfWay();
    const before = await recorded(journal);
    const handle = await open(part, "r+");
    const { records } = await readJournal(journal);
    const segment = (records.find((r) => "s" in (r as object)) as { s: number }).s;
    const at = segment * SEGMENT + 777;
    const byte = Buffer.alloc(1);
    await handle.read(byte, 0, 1, at);
    byte[0]! ^= 0x10;
    await handle.write(byte, 0, 1, at);
    await handle.close();
    const { result, messages } = await run(hub, dir, { concurrency: 2 });
    expect(messages.join("\n")).toMatch(/damaged on the disk/);
    expect(result.downloaded_bytes).toBe(8 * MIB - (before - 1) * SEGMENT);
    await expectComplete(dir, files);
  });

  it("a torn write (a hole of zeros) costs only the segments it touches", async () => {
    const { files, hub, dir, part, journal } = await halfWay();
    const before = await recorded(journal);
    const { records } = await readJournal(journal);
    const segment = (records.filter((r) => "s" in (r as object)).at(-1) as { s: number }).s;
    const handle = await open(part, "r+");
    await handle.write(Buffer.alloc(4096), 0, 4096, segment * SEGMENT + 8192);
    await handle.close();
    const { result } = await run(hub, dir, { concurrency: 2 });
    expect(result.downloaded_bytes).toBe(8 * MIB - (before - 1) * SEGMENT);
    await expectComplete(dir, files);
  });

  it("a torn last line of the journal is ignored, the records before it count", async () => {
    const { files, hub, dir, journal } = await halfWay();
    const text = await readFile(journal);
    await writeFile(journal, text.subarray(0, text.length - 7));
    const before = await recorded(journal);
    const { result } = await run(hub, dir, { concurrency: 2 });
    expect(result.resumed_bytes).toBe(before * SEGMENT);
    await expectComplete(dir, files);
  });

  it("a flipped byte in the middle of the journal loses what follows, never more, and corrupts nothing", async () => {
    const { files, hub, dir, journal } = await halfWay();
    const text = await readFile(journal);
    text[Math.floor(text.length / 2)]! ^= 1;
    await writeFile(journal, text);
    const before = await recorded(journal);
    const { result } = await run(hub, dir, { concurrency: 2 });
    expect(result.resumed_bytes).toBe(before * SEGMENT);
    await expectComplete(dir, files);
  });

  it("a journal that speaks of other content, or a part file of another size, means starting over", async () => {
    for (const harm of ["journal", "part"]) {
      const { files, hub, dir, journal, part } = await halfWay();
      if (harm === "part") await truncate(part, 5 * MIB);
      else await writeFile(journal, (await readFile(journal, "utf8")).replace(/"size":\d+/, '"size":1'));
      const { result } = await run(hub, dir, { concurrency: 2 });
      expect(result.resumed_bytes).toBe(0);
      await expectComplete(dir, files);
    }
  });

  it("a journal without its part file does not vouch for anything", async () => {
    const { files, hub, dir, part } = await halfWay();
    await rm(part);
    const { result } = await run(hub, dir, { concurrency: 2 });
    expect(result.resumed_bytes).toBe(0);
    await expectComplete(dir, files);
  });
});
