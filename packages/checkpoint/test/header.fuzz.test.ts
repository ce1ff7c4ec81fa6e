import fc from "fast-check";
import { expect, test } from "vitest";
import { DTYPES, UNKNOWN_DTYPE } from "../src/dtypes.ts";
import { parseHeader } from "../src/header.ts";
import { HeaderTable } from "../src/header-table.ts";

/** Of the longest of the three tests; all together take 1.4 times as long: ten minutes in the nightly form, a minute in CI. */
const SECONDS = Number(process.env["K3_FUZZ_SECONDS"] ?? (process.env["K3_NIGHTLY"] ? 440 : 8));
const limits = {
  interruptAfterTimeLimit: SECONDS * 1000,
  numRuns: 100_000_000,
  markInterruptAsFailure: false,
};
const TIMEOUT = (SECONDS + 30) * 1000;

/** What must hold, decided in another way: JSON.parse, BigInt and plain sorting. */
function isSound(json: Uint8Array, dataBytes: number): boolean {
  let header: unknown;
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(json);
    header = JSON.parse(text);
  } catch {
    return false;
  }
  // 2.0 and 2e0 are whole numbers for JSON.parse, and no sizes for the format. Outside of strings only they have these.
  if (/\d[.eE]/.test(text.replace(/"(?:[^"\\]|\\.)*"/gs, ""))) return false;
  if (json[0] !== 0x7b || typeof header !== "object" || header === null) return false;
  const spans: [bigint, bigint][] = [];
  for (const [name, entry] of Object.entries(header)) {
    // A lone surrogate can be written as an escape, and cannot be UTF-8.
    if (!name.isWellFormed()) return false;
    if (name === "__metadata__") {
      if (typeof entry !== "object" || entry === null || Array.isArray(entry)) return false;
      if (!Object.values(entry).every((value) => typeof value === "string")) return false;
      continue;
    }
    if (typeof entry !== "object" || entry === null) return false;
    if (Object.keys(entry).sort().join() !== "data_offsets,dtype,shape") return false;
    const { dtype, shape, data_offsets: offsets } = entry as Record<string, unknown>;
    const bits = DTYPES.find(([known]) => known === dtype)?.[1];
    const sizes = (list: unknown): list is number[] =>
      Array.isArray(list) && list.every((n) => Number.isSafeInteger(n) && n >= 0 && !Object.is(n, -0));
    if (bits === undefined || !sizes(shape) || !sizes(offsets) || offsets.length !== 2) return false;
    const [begin, end] = [BigInt(offsets[0]!), BigInt(offsets[1]!)];
    const elements = shape.reduce((product, n) => product * BigInt(n), 1n);
    if (elements * BigInt(bits) !== (end - begin) * 8n) return false;
    spans.push([begin, end]);
  }
  spans.sort(([a, b], [c, d]) => (a === c ? Number(b - d) : Number(a - c)));
  let at = 0n;
  for (const [begin, end] of spans) {
    if (begin !== at) return false;
    at = end;
  }
  return at === BigInt(dataBytes);
}

/** Headers that are sound: tensors of several dtypes one after the other, named and ordered at random. */
const soundHeader = fc
  .record({
    tensors: fc.array(
      fc.record({
        name: fc.oneof(
          fc.string({ maxLength: 12 }),
          fc.constantFrom("a", "b.weight", "x\ud83d\ude80", '"q\\'),
        ),
        dtype: fc.constantFrom(...DTYPES.filter(([, bits]) => bits % 8 === 0)),
        shape: fc.array(fc.nat({ max: 4 }), { maxLength: 4 }),
      }),
      { maxLength: 8 },
    ),
    metadata: fc.option(
      fc.dictionary(fc.string({ maxLength: 4 }), fc.string({ maxLength: 4 }), { maxKeys: 2 }),
    ),
    padding: fc.nat({ max: 8 }),
    reversed: fc.boolean(),
  })
  .map(({ tensors, metadata, padding, reversed }) => {
    const entries = new Map<string, object>();
    let at = 0;
    for (const { name, dtype, shape } of tensors) {
      if (entries.has(name) || name === "__metadata__" || !name.isWellFormed()) continue;
      const bytes = (shape.reduce((product, n) => product * n, 1) * dtype[1]) / 8;
      entries.set(name, { dtype: dtype[0], shape, data_offsets: [at, at + bytes] });
      at += bytes;
    }
    const list = [...entries].map(([name, entry]) => `${JSON.stringify(name)}:${JSON.stringify(entry)}`);
    if (reversed) list.reverse();
    if (metadata) list.unshift(`"__metadata__":${JSON.stringify(metadata)}`);
    return { json: Buffer.from(`{${list.join(",")}}${" ".repeat(padding)}`), bytes: at, count: entries.size };
  });

const change = fc.record({
  at: fc.nat(),
  how: fc.constantFrom("set", "digit", "insert", "delete", "copy", "cut"),
  byte: fc.oneof(fc.nat({ max: 255 }), fc.constantFrom(...Buffer.from('{}[]",:\\-.0123456789eE +u'))),
  length: fc.nat({ max: 40 }),
});
type Change = typeof change extends fc.Arbitrary<infer T> ? T : never;

function mutate(bytes: Buffer, { at, how, byte, length }: Change): Buffer {
  if (bytes.length === 0) return bytes;
  const place = at % bytes.length;
  const [before, after] = [bytes.subarray(0, place), bytes.subarray(place)];
  if (how === "insert") return Buffer.concat([before, Buffer.from([byte]), after]);
  if (how === "delete") return Buffer.concat([before, after.subarray(length)]);
  if (how === "copy") return Buffer.concat([before, after.subarray(0, length), after]);
  if (how === "cut") return Buffer.from(before);
  const copy = Buffer.from(bytes);
  copy[place] = how === "digit" ? 0x30 + (byte % 10) : byte;
  return copy;
}

const table = new HeaderTable();

test("a sound header has no faults, and its entries are those that JSON.parse sees", {
  timeout: TIMEOUT,
}, () => {
  fc.assert(
    fc.property(soundHeader, ({ json, bytes, count }) => {
      const header = JSON.parse(json.toString("utf8"));
      expect(parseHeader(Buffer.from(json), bytes, table)).toEqual([]);
      expect(table.count).toBe(count);
      for (let i = 0; i < count; i++) {
        const { dtype, shape, data_offsets } = header[table.name(i)];
        expect([DTYPES[table.dtype[i]!]![0], table.shape(i)]).toEqual([dtype, shape]);
        expect([table.begin[i], table.end[i]]).toEqual(data_offsets);
      }
    }),
    { ...limits, interruptAfterTimeLimit: (SECONDS * 1000) / 4 },
  );
});

test("a changed header is accepted exactly when it is still sound, and never throws", {
  timeout: TIMEOUT,
}, () => {
  fc.assert(
    fc.property(
      soundHeader,
      fc.array(change, { minLength: 1, maxLength: 4 }),
      fc.nat({ max: 3 }),
      (sound, changes, rest) => {
        const json = changes.reduce(mutate, sound.json);
        const dataBytes = sound.bytes + (rest === 3 ? 1 : 0);
        const faults = parseHeader(Buffer.from(json), dataBytes, table);
        // JSON.parse keeps the last of two equal names; our parser must refuse both names and fields that come twice.
        const twice = faults.some(({ kind, found }) => kind === "duplicate" || found.startsWith("another "));
        if (!twice) expect(faults.length === 0).toBe(isSound(json, dataBytes));
        for (const { kind, expected, found } of faults)
          expect([typeof kind, typeof expected, typeof found]).toEqual(["string", "string", "string"]);
        for (let i = 0; i < table.count; i++) {
          if (table.dtype[i] === UNKNOWN_DTYPE || table.begin[i]! < 0) continue;
          expect(table.end[i]! - table.begin[i]!).toBe(
            (table.shape(i).reduce((product, n) => product * n, 1) * DTYPES[table.dtype[i]!]![1]) / 8,
          );
        }
      },
    ),
    limits,
  );
});

test("arbitrary bytes never throw", { timeout: TIMEOUT }, () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), fc.nat(), (bytes, dataBytes) => {
      expect(parseHeader(Uint8Array.from(bytes), dataBytes, table).length).toBeGreaterThan(0);
    }),
    { ...limits, interruptAfterTimeLimit: (SECONDS * 1000) / 8 },
  );
});
