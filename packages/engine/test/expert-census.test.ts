import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import type { StageEvent } from "@k3/stage";
import fc from "fast-check";
import { beforeEach, expect, test } from "vitest";
import { CensusKeeper } from "../src/census-keeper.ts";
import { addToCensus, formatCensus, parseCensus, readCensus } from "../src/expert-census.ts";
import { type ExpertTrace, Model, type PassRecord, simulateExpertCache } from "../src/index.ts";
import { packedMiniature } from "./miniature.ts";

const OWNER = { configSha256: "ab", layers: 2, experts: 3 };
let path: string;

beforeEach(async () => {
  path = join(await mkdtemp(join(tmpdir(), "k3-census-")), "expert-census");
});

/** The file by the words of its format, not by the code that writes it. */
function byHand(header: object, counts: number[]): Buffer {
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.from([json.length, 0, 0, 0]);
  const content = Buffer.concat([
    Buffer.from("K3CENSUS"),
    length,
    json,
    Buffer.from(counts.flatMap((count) => [count & 255, count >> 8])),
  ]);
  const crc = crc32(content);
  return Buffer.concat([content, Buffer.from([crc & 255, (crc >> 8) & 255, (crc >> 16) & 255, crc >>> 24])]);
}

const CONTENT = { tokens: 700, uses: Uint32Array.of(1, 2, 3, 0, 650, 6) };
const FILE = byHand({ version: 1, ...OWNER, tokens: 700 }, [1, 2, 3, 0, 650, 6]);

test("a file is what the format says", () => {
  expect(parseCensus(FILE, OWNER, "f")).toEqual(CONTENT);
  expect(formatCensus(OWNER, CONTENT)).toEqual(FILE);
});

test("many tokens fade: counts and tokens are halved together until they fit", () => {
  const uses = Uint32Array.of(40_000, 4, 3, 0, 1, 20_000);
  expect(parseCensus(formatCensus(OWNER, { tokens: 40_000, uses }), OWNER, "f")).toEqual({
    tokens: 10_000,
    uses: Uint32Array.of(10_000, 1, 0, 0, 0, 5000),
  });
});

test("any flipped byte and any cut is found", () => {
  fc.assert(
    fc.property(fc.nat(FILE.length - 1), fc.integer({ min: 1, max: 255 }), (at, flip) => {
      const flipped = Buffer.from(FILE);
      flipped[at]! ^= flip;
      for (const bytes of [flipped, FILE.subarray(0, at)]) {
        expect(() => parseCensus(bytes, OWNER, "f")).toThrow(expect.objectContaining({ code: "E_DATA" }));
      }
    }),
  );
});

test.each([
  { ...OWNER, configSha256: "cd" },
  { ...OWNER, layers: 3 },
  { ...OWNER, experts: 2 },
])("another model's counts are refused, and replaced when something is counted: %j", async (other) => {
  await writeFile(path, FILE);
  await expect(readCensus(path, other)).rejects.toThrow(expect.objectContaining({ code: "E_DATA" }));
  const counted = { tokens: 1, uses: new Uint32Array(other.layers * other.experts).fill(1) };
  await addToCensus(path, other, counted);
  expect(await readCensus(path, other)).toEqual(counted);
});

test("more uses than tokens are refused, and the next save puts the file right", async () => {
  await writeFile(path, byHand({ version: 1, ...OWNER, tokens: 5 }, [0, 6, 65_535, 0, 0, 5]));
  await expect(readCensus(path, OWNER)).rejects.toMatchObject({
    code: "E_DATA",
    message: expect.stringContaining("more uses than tokens"),
  });
  await addToCensus(path, OWNER, { tokens: 1, uses: new Uint32Array(6).fill(1) });
  expect(await readCensus(path, OWNER)).toEqual({ tokens: 1, uses: new Uint32Array(6).fill(1) });
});

test.each([2 ** 32, 2 ** 46, 2 ** 53 - 2])(
  "a file of %i tokens takes more, and fits after it",
  async (tokens) => {
    await writeFile(path, byHand({ version: 1, ...OWNER, tokens }, [0, 6, 65_535, 0, 0, 65_535]));
    await addToCensus(path, OWNER, { tokens: 1, uses: new Uint32Array(6).fill(1) });
    expect((await readCensus(path, OWNER)).tokens).toBeGreaterThanOrEqual(8192);
  },
);

test("models that share a file save one after the other, and nothing of either is lost", async () => {
  const counted = { tokens: 3, uses: Uint32Array.of(3, 0, 0, 0, 1, 0) };
  await Promise.all(Array.from({ length: 20 }, () => addToCensus(path, OWNER, counted)));
  expect(await readCensus(path, OWNER)).toEqual({ tokens: 60, uses: Uint32Array.of(60, 0, 0, 0, 20, 0) });
});

test("what is counted is added to what another process wrote meanwhile", async () => {
  await addToCensus(path, OWNER, CONTENT);
  await addToCensus(path, OWNER, { tokens: 3, uses: Uint32Array.of(3, 0, 0, 0, 1, 0) });
  expect(await readCensus(path, OWNER)).toEqual({ tokens: 703, uses: Uint32Array.of(4, 2, 3, 0, 651, 6) });
});

/** Runs ids one by one; gives what each pass chose, and its logits. */
async function runModel(options: {
  census?: string;
  expertsCached?: number;
  events?: StageEvent[];
  seed?: number;
}) {
  const { dir } = await packedMiniature();
  const { census, expertsCached, events, seed = 17 } = options;
  const onEvent = events && ((event: StageEvent) => events.push(event));
  const model = await Model.open({
    ...{ modelDir: dir, memory: 8e9, chunk: 1, census, onEvent, tuning: { expertsCached } },
  });
  const session = model.session();
  const records: PassRecord[] = [];
  const ids = Array.from({ length: 40 }, (_, i) => (i * seed) % 190);
  const logits = Float32Array.from(
    await session.prefill(ids, { trace: true, onPass: (pass) => records.push(pass) }),
  );
  const { censusTokens, config } = model;
  await model.close();
  const top = config.expertsPerToken;
  const layers = records[0]!.experts!.length / top;
  const trace: ExpertTrace = Array.from({ length: layers }, (_, layer) =>
    records.map(({ experts }) => [...experts!.subarray(layer * top, (layer + 1) * top)]),
  );
  const resident = records.reduce((sum, { stats }) => sum + stats.experts.resident, 0);
  return { logits, trace, resident, censusTokens, experts: config.experts };
}

test("a run counts what the router chose, the next one knows it, and the answer is the same", async () => {
  const first = await runModel({ census: path });
  const bytes = await readFile(path);
  const json = JSON.parse(bytes.subarray(12, 12 + bytes.readUInt32LE(8)).toString());
  expect(json).toMatchObject({ tokens: 40, layers: first.trace.length });
  const counts = new Array(first.trace.length * json.experts).fill(0);
  for (const [layer, tokens] of first.trace.entries()) {
    for (const expert of tokens.flat()) counts[layer * json.experts + expert]++;
  }
  const start = 12 + bytes.readUInt32LE(8);
  expect(counts.map((_, i) => bytes.readUInt16LE(start + i * 2))).toEqual(counts);

  const second = await runModel({ census: path });
  expect([first.censusTokens, second.censusTokens]).toEqual([0, 40]);
  expect(second.logits).toEqual(first.logits);
});

test("the cache follows the rule with a census: about as many hits as the replay, more than without", async () => {
  const expertsCached = 12;
  const { trace: earlier } = await runModel({ census: path, seed: 31 });
  const { trace, resident } = await runModel({ census: path, expertsCached });
  const { requests, hits } = simulateExpertCache(trace, "k3", expertsCached, earlier);
  expect(Math.abs(resident - hits) / requests).toBeLessThan(0.04);
  const without = await runModel({ expertsCached });
  expect(without.censusTokens).toBeNull();
  expect(resident).toBeGreaterThan(without.resident);
});

test("a pass that is stopped, and a run of the first layers only, count nothing", async () => {
  const { dir } = await packedMiniature();
  await runModel({ census: path });
  const whole = await readFile(path);
  const partial = await Model.open({ modelDir: dir, memory: 8e9, census: path, layers: 2 });
  expect(partial.censusTokens).toBeNull();
  await partial.session().prefill([1, 2, 3]);
  await partial.close();
  const model = await Model.open({ modelDir: dir, memory: 8e9, census: path });
  const controller = new AbortController();
  const running = model.session().prefill([1, 2, 3], { signal: controller.signal });
  setImmediate(() => controller.abort());
  const stopped = await running.then(
    () => false,
    () => true,
  );
  await model.close();
  if (stopped) expect(await readFile(path)).toEqual(whole);
});

test("counts that cannot be written wait for the next save", async () => {
  const below = join(path, "census");
  await writeFile(path, "in the way");
  const keeper = await CensusKeeper.open(below, OWNER, undefined);
  await keeper.add({ tokens: 1, uses: Uint32Array.of(1, 0, 0, 0, 0, 0) });
  await rm(path);
  await keeper.add({ tokens: 2, uses: Uint32Array.of(0, 2, 0, 0, 0, 0) });
  expect(await readCensus(below, OWNER)).toEqual({ tokens: 3, uses: Uint32Array.of(1, 2, 0, 0, 0, 0) });
});

test("a damaged census, and a place that cannot be written, are a warning and no end", async () => {
  await writeFile(path, FILE.subarray(0, 20));
  const events: StageEvent[] = [];
  expect((await runModel({ census: path, events })).censusTokens).toBe(0);
  expect((await runModel({ census: path })).censusTokens).toBe(40);
  await runModel({ census: join(path, "below-a-file"), events });
  const warnings = events.filter((event) => event.type === "log" && event.level === "warn");
  expect(warnings.map((event) => "message" in event && event.message)).toEqual([
    expect.stringContaining("the census of experts begins anew"),
    expect.stringContaining("the census of experts begins anew"),
    expect.stringContaining("the census of experts is not kept"),
  ]);
});
