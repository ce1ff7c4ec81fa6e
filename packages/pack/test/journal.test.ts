import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { openCheckpoint } from "@k3/checkpoint";
import { encodeRecord } from "@k3/stage";
import fc from "fast-check";
import { expect, it } from "vitest";
import { PackJournal } from "../src/journal.ts";
import { largestDataBytes, planPack } from "../src/plan.ts";
import { madeCheckpoint } from "./fixture.ts";

it("journals of arbitrary records are refused or fit their trunk", async () => {
  const { modelDir, trunkDir } = await madeCheckpoint();
  const journal = join(trunkDir, "trunk.journal");
  const plan = await planPack(await openCheckpoint(modelDir), "bf16", 16_384);
  await mkdir(trunkDir, { recursive: true });
  await (await PackJournal.open(trunkDir, plan)).close();
  const start = await readFile(journal, "utf8");
  const record = fc.oneof(
    fc.jsonValue(),
    fc.record({
      type: fc.constant("blocks"),
      first: fc.integer({ min: -1, max: 3 }),
      results: fc.oneof(
        fc.string(),
        fc.uint8Array({ maxLength: 96 }).map((bytes) => Buffer.from(bytes).toString("base64")),
        fc
          .array(fc.constantFrom(0, 1, 64, 4096, 16_384, 2 ** 32 - 1), { minLength: 4, maxLength: 8 })
          .map((values) => Buffer.from(Uint32Array.from(values).buffer).toString("base64")),
      ),
    }),
  );
  await fc.assert(
    fc.asyncProperty(
      fc.array(record, { minLength: 1, maxLength: 3 }),
      fc.boolean(),
      async (records, begun) => {
        await writeFile(journal, (begun ? start : "") + records.map(encodeRecord).join(""));
        try {
          const opened = await PackJournal.open(trunkDir, plan);
          expect(opened.blocks).toBeLessThanOrEqual(plan.layout.blocks);
          expect(opened.offset).toBeLessThanOrEqual(largestDataBytes(plan));
          await opened.close();
        } catch (error) {
          expect(error).toMatchObject({ code: "E_DATA" });
        }
      },
    ),
    { numRuns: process.env["K3_NIGHTLY"] === "1" ? 2000 : 100 },
  );
});
