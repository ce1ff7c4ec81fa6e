import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { encodeRecord, Journal, readJournal } from "../src/index.ts";

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-journal-"));
});
afterAll(() => rm(dir, { recursive: true, force: true }));

describe("a journal", () => {
  it("writes each record as JSON, a space, # and the CRC-32 of the JSON", () => {
    // CRC-32 of the nine bytes 123456789 is cbf43926 (the check value of CRC-32/ISO-HDLC).
    expect(encodeRecord(123456789)).toBe("123456789 #cbf43926\n");
  });

  it("reads back what was appended, across reopening", async () => {
    const path = join(dir, "reopen");
    for (const n of [1, 2, 3]) {
      const { journal, records } = await Journal.open(path);
      expect(records).toHaveLength(n - 1);
      await journal.append({ n });
      await journal.close();
    }
    expect((await readJournal(path)).records).toEqual([{ n: 1 }, { n: 2 }, { n: 3 }]);
  });

  it("is valid up to its last complete record, however it is torn or damaged", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.jsonValue(), { minLength: 1, maxLength: 8 }),
        fc.nat(),
        fc.boolean(),
        async (values, where, cut) => {
          const path = join(dir, "torn");
          const lines = values.map(encodeRecord);
          const bytes = Buffer.from(lines.join(""));
          const at = where % bytes.length;
          const damaged = cut ? bytes.subarray(0, at) : Buffer.from(bytes);
          if (!cut) damaged[at] = damaged[at]! ^ 0x04;
          await writeFile(path, damaged);
          let intact = 0;
          let end = 0;
          while (intact < lines.length && end + Buffer.byteLength(lines[intact]!) <= at) {
            end += Buffer.byteLength(lines[intact]!);
            intact++;
          }
          const { journal, records } = await Journal.open(path);
          expect(records).toEqual(values.slice(0, intact).map((value) => JSON.parse(JSON.stringify(value))));
          await journal.append("next");
          await journal.close();
          expect((await readFile(path)).toString()).toBe(
            lines.slice(0, intact).join("") + encodeRecord("next"),
          );
        },
      ),
      { numRuns: 60, seed: 3 },
    );
  });

  it("keeps every acknowledged record through SIGKILL", async () => {
    const path = join(dir, "killed");
    const child = spawn(process.execPath, [join(import.meta.dirname, "children/append-forever.mjs"), path], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    let acknowledged = 0;
    child.stdout.on("data", (data: Buffer) => {
      acknowledged = Number(data.toString().trim().split("\n").at(-1));
      if (acknowledged >= 20) child.kill("SIGKILL");
    });
    await new Promise((done) => child.once("close", done));
    const { records } = await readJournal(path);
    expect(acknowledged).toBeGreaterThanOrEqual(20);
    expect(records.length).toBeGreaterThanOrEqual(acknowledged);
    expect(records.slice(0, acknowledged)).toEqual(Array.from({ length: acknowledged }, (_, n) => n + 1));
  });
});
