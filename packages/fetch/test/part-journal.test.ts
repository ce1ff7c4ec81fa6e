import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { encodeRecord, readJournal } from "@k3/stage";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { headerMismatch, headerOf, replay, SEGMENT } from "../src/part-journal.ts";
import { temporary } from "./support.ts";

/** Nine segments of 100 bytes and one of 37. */
const SIZE = 937;
const SEGMENT_BYTES = 100;
const lengthOf = (segment: number) => (segment === 9 ? 37 : 100);

const segment = fc.integer({ min: 0, max: 11 });
const bytes = fc.oneof(fc.integer({ min: -1, max: 101 }), fc.constantFrom(37, 100, 1.5, Number.MAX_VALUE));
const checksum = fc.oneof(
  { weight: 5, arbitrary: fc.nat({ max: 0xffffffff }).map((n) => n.toString(16).padStart(8, "0")) },
  { weight: 1, arbitrary: fc.constantFrom("", "1234567", "123456789", "0x123456", "ABCDEF01", "-1234567") },
);
const owner = { pid: 1, start: "2", host: "h", boot: "b" };
const records = fc.array(
  fc.oneof(
    { weight: 4, arbitrary: fc.record({ s: segment, n: bytes, c: checksum }) },
    {
      weight: 4,
      arbitrary: segment.chain((s) =>
        fc.record({ s: fc.constant(s), n: fc.constant(s < 10 ? lengthOf(s) : 5), c: checksum }),
      ),
    },
    { weight: 6, arbitrary: fc.record({ p: segment, n: bytes, c: checksum }) },
    { weight: 3, arbitrary: fc.record({ x: segment }) },
    { weight: 1, arbitrary: fc.constant({ o: owner }) },
    { weight: 1, arbitrary: fc.jsonValue() },
  ),
  { maxLength: 40 },
);

const isCount = (value: unknown, most: number) =>
  Number.isInteger(value) && (value as number) >= 0 && (value as number) <= most;
const isChecksum = (value: unknown) => typeof value === "string" && /^[0-9a-f]{8}$/.test(value);

/** The rules of docs/files.md for one segment, said once more without the code: the fate that its own records lead to. */
function fate(
  all: readonly unknown[],
  of: number,
): { durable?: string; prefix?: { bytes: number; crc: number } } {
  const mine = all.filter((each) => {
    const entry = each as Record<string, unknown> | null;
    return typeof entry === "object" && entry !== null && [entry["s"], entry["p"], entry["x"]].includes(of);
  }) as Record<string, unknown>[];
  const from = mine.findLastIndex((entry) => entry["x"] === of) + 1;
  const since = mine.slice(from);
  const whole = since
    .filter((entry) => entry["n"] === lengthOf(of) && "s" in entry && isChecksum(entry["c"]))
    .at(-1);
  if (whole) return { durable: whole["c"] as string };
  const part = since
    .filter(
      (entry) =>
        "p" in entry && isCount(entry["n"], lengthOf(of) - 1) && entry["n"] !== 0 && isChecksum(entry["c"]),
    )
    .at(-1);
  return part
    ? { prefix: { bytes: part["n"] as number, crc: Number.parseInt(part["c"] as string, 16) } }
    : {};
}

describe("the journal of a part file", () => {
  it("vouches for what its records say, segment by segment, and for nothing else, whatever they are", () => {
    fc.assert(
      fc.property(records, (all) => {
        const { state, crc, prefixes } = replay(all, SIZE, SEGMENT_BYTES);
        expect(state).toHaveLength(10);
        for (let s = 0; s < 10; s++) {
          const { durable, prefix } = fate(all, s);
          expect(state[s]).toBe(durable ? SEGMENT.durable : SEGMENT.missing);
          if (durable) expect(crc[s]).toBe(Number.parseInt(durable, 16));
          expect(prefixes.get(s)).toEqual(prefix);
        }
        expect([...prefixes.keys()].every((s) => s < 10)).toBe(true);
      }),
      { numRuns: 500 },
    );
  });

  it("cut or changed at any byte, it says what it said at some moment before, never anything new", async () => {
    const path = join(await temporary(), "journal");
    await fc.assert(
      fc.asyncProperty(records, fc.nat(), fc.integer({ min: 0, max: 255 }), async (all, where, value) => {
        const text = Buffer.from(all.map(encodeRecord).join(""));
        fc.pre(text.length > 0);
        const at = where % text.length;
        const changed = Buffer.from(text);
        changed[at] = value;
        for (const harmed of [text.subarray(0, at), changed]) {
          await writeFile(path, harmed);
          const found = (await readJournal(path)).records;
          expect(found).toEqual(JSON.parse(JSON.stringify(all.slice(0, found.length))));
          // Every record that ends before the harm is still there.
          const whole = text.subarray(0, at).toString("latin1").split("\n").length - 1;
          expect(found.length).toBeGreaterThanOrEqual(whole);
        }
      }),
      { numRuns: 200 },
    );
  });

  it("belongs to one content, one size and one segment size; another version is named", () => {
    const file = { path: "a", size: SIZE, sha256: "ab".repeat(32) };
    const head = headerOf(file, SEGMENT_BYTES);
    expect(headerMismatch(JSON.parse(JSON.stringify(head)), head)).toBe(undefined);
    for (const other of [{ path: "b" }, { size: SIZE + 1 }, { hash: "cd".repeat(32) }]) {
      expect(headerMismatch({ ...head, ...other }, head)).toContain("another content");
    }
    expect(headerMismatch({ ...head, seg: 1 }, head)).toContain("segments of another size");
    expect(headerMismatch({ ...head, v: 7 }, head)).toContain("version 7");
    for (const none of [undefined, null, 3, "x", [], {}, { s: 1, n: 1, c: "00000000" }]) {
      expect(headerMismatch(none, head)).toContain("does not say");
    }
  });
});
