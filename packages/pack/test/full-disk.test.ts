import { statfsSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { pack } from "../src/index.ts";
import { temporaryDirectory, trunkDigest, writeCheckpoint } from "./fixture.ts";
import { canMount, mountTmpfs } from "./mount.ts";

const title = canMount ? "a disk that fills" : "a disk that fills (skipped: mounting needs root)";
describe.skipIf(!canMount)(title, () => {
  it("is refused before anything is written when the trunk cannot fit, with both numbers", async () => {
    const root = await temporaryDirectory();
    const modelDir = join(root, "model");
    await writeCheckpoint(modelDir, { config: { vocab_size: 200_000 } }); // 26 MB of lm_head, 17 MB coded
    const disk = mountTmpfs(8 << 20);
    const error = await pack({ modelDir, trunkDir: join(disk, "trunk"), blockBytes: 16_384 }).catch((e) => e);
    expect(error).toMatchObject({ code: "E_SPACE", exit: 5 });
    expect(error.details.available).toBeLessThanOrEqual(8 << 20);
    expect(error.details.needed).toBeGreaterThan(17e6);
    expect(error.message).toContain(String(error.details.needed));
    expect(error.message).toContain(String(error.details.available));
  });

  it("stops a pack that is under way with exit 5, and the same call continues when there is room", async () => {
    const root = await temporaryDirectory();
    const modelDir = join(root, "model");
    await writeCheckpoint(modelDir, { config: { vocab_size: 1_000_000 } }); // 128 MB of lm_head
    const options = { modelDir, threads: 2, commitMs: 1 };
    await pack({ ...options, trunkDir: join(root, "straight") });

    const disk = mountTmpfs(128 << 20);
    const trunkDir = join(disk, "trunk");
    // Something else eats the room, all but a little, as soon as packing has begun.
    const ballast = join(disk, "ballast");
    let eaten = false;
    const run = pack({
      ...options,
      trunkDir,
      onEvent: (event) => {
        if (eaten || event.type !== "progress" || !event.phase.startsWith("packing")) return;
        eaten = true;
        const { bavail, bsize } = statfsSync(disk);
        try {
          writeFileSync(ballast, Buffer.alloc(Math.max(0, bavail * bsize - (4 << 20))));
        } catch (error) {
          expect(error).toMatchObject({ code: "ENOSPC" }); // packing was faster; the disk is full all the same
        }
      },
    });
    const error = await run.catch((e) => e);
    expect(error).toMatchObject({ code: "E_SPACE", exit: 5 });
    expect(error.details).toMatchObject({ needed: expect.any(Number), available: expect.any(Number) });
    await rm(ballast);
    const { resumed_blocks } = await pack({ ...options, trunkDir, check: true });
    expect(resumed_blocks).toBeGreaterThan(0);
    expect(await trunkDigest(trunkDir)).toEqual(await trunkDigest(join(root, "straight")));
  });
});
