import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { LogEvent } from "@k3/stage";
import { describe, expect, it } from "vitest";
import { pack } from "../src/index.ts";
import { temporaryDirectory, trunkDigest, writeCheckpoint } from "./fixture.ts";
import { canMount, mount4Kn, mountRamfs } from "./mount.ts";

const options = { blockBytes: 16_384, threads: 2, check: true } as const;

async function straight() {
  const root = await temporaryDirectory();
  const [modelDir, trunkDir] = [join(root, "model"), join(root, "trunk")];
  await writeCheckpoint(modelDir);
  await pack({ modelDir, trunkDir, ...options });
  return { modelDir, digest: await trunkDigest(trunkDir) };
}

describe("in memory", () => {
  it("packs to a filesystem in memory, with and without asking for direct access (T-29)", async () => {
    const { modelDir, digest } = await straight();
    const memory = await temporaryDirectory("/dev/shm");
    for (const direct of [true, false]) {
      const trunkDir = join(memory, String(direct));
      await pack({ modelDir, trunkDir, direct, ...options });
      expect(await trunkDigest(trunkDir)).toEqual(digest);
    }
  });
});

const title = canMount ? "mounted filesystems" : "mounted filesystems (skipped: mounting needs root)";
describe.skipIf(!canMount)(title, () => {
  it("without O_DIRECT are used through the page cache, which is reported (T-29)", async () => {
    const { modelDir, digest } = await straight();
    const dir = mountRamfs();
    const logs: string[] = [];
    const onEvent = (event: { type: string }) => {
      if (event.type === "log") logs.push((event as LogEvent).message);
    };
    await pack({ modelDir, trunkDir: join(dir, "trunk"), onEvent, ...options });
    expect(await trunkDigest(join(dir, "trunk"))).toEqual(digest);
    expect(logs).toEqual(["the filesystem of the trunk has no direct access: the page cache was used"]);

    await writeCheckpoint(join(dir, "model"));
    const trunkDir = join(await temporaryDirectory(), "trunk");
    await pack({ modelDir: join(dir, "model"), trunkDir, onEvent, ...options });
    expect(await trunkDigest(trunkDir)).toEqual(digest);
    expect(logs[1]).toMatch(/the filesystem of the checkpoint has no direct access/);
  });

  it("with sectors of 4096 bytes are read and written past the page cache (T-28)", async ({ skip }) => {
    const { digest } = await straight();
    const dir = mount4Kn(64 << 20);
    if (!dir) return skip("no loop devices here");
    const logs: unknown[] = [];
    await writeCheckpoint(join(dir, "model"));
    await pack({
      modelDir: join(dir, "model"),
      trunkDir: join(dir, "trunk"),
      onEvent: (event) => event.type === "log" && logs.push(event),
      ...options,
    });
    expect(await trunkDigest(join(dir, "trunk"))).toEqual(digest);
    expect(logs).toEqual([]);
  });
});

it("takes less than 500 MB of memory, whatever is packed", async () => {
  const root = await temporaryDirectory();
  const modelDir = join(root, "model");
  // 1.8 GB of head, a hole but for its ends, and 180 MB of weights that are coded by all threads at once.
  await writeCheckpoint(modelDir, {
    config: { vocab_size: 14_000_000, intermediate_size: 450_000 },
    sparse: /lm_head|embed/,
  });
  const index = new URL("../dist/index.js", import.meta.url).href;
  const script = `const { pack } = await import(${JSON.stringify(index)});
    await pack(${JSON.stringify({ modelDir, trunkDir: join(root, "trunk"), threads: 16 })});
    console.log(process.resourceUsage().maxRSS);`;
  const out = execFileSync(process.execPath, ["--input-type=module", "-e", script], { encoding: "utf8" });
  expect(Number(out) * 1024).toBeLessThan(500e6);
  expect(Number(out) * 1024).toBeGreaterThan(30e6);
});
