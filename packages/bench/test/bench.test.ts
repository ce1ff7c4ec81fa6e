import { copyFile, cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeMiniature } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { bench, canary, compareRuns, doctor, probeDisk } from "../src/index.ts";

let dir: string;
let model: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-bench-"));
  model = join(dir, "model");
  await makeMiniature(model);
}, 300_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

const MEMORY = 400e6;

describe("bench on the miniature", { timeout: 300_000 }, () => {
  it("measures phases apart, three runs a point, with the ids as a gate, and writes the report", async () => {
    const result = await bench({
      modelDir: model,
      memory: [MEMORY],
      threads: [1, 2],
      generate: 3,
      cold: "none",
      outDir: join(dir, "a"),
    });
    expect(result.ok).toBe(true);
    expect(result.points).toHaveLength(2);
    for (const point of result.points) {
      expect(point.ids_as_expected).toBe(true);
      expect(point.runs).toHaveLength(3);
      for (const run of point.runs) {
        expect(run.steps.map((step) => step.phase)).toEqual(["cold", "prefill", "decode", "decode"]);
        for (const phase of ["open", "cold_step", "prefill", "first_decode"] as const)
          expect(run[phase]).toBeGreaterThan(0);
        expect(run.owed_bytes).toBe(
          run.steps.reduce(
            (sum, { read }) => sum + read.trunk_bytes + read.head_bytes + read.expert_bytes,
            0,
          ),
        );
        expect(run.peak_rss_bytes).toBeLessThan(MEMORY * 1.03);
        expect(run.memory.length).toBeGreaterThan(0);
      }
    }
    expect(result.receipt).toMatchObject({
      addon_sha256: expect.stringMatching(/^[0-9a-f]{64}$/),
      model: { layers: 9 },
    });
    expect((await readdir(join(dir, "a"))).sort()).toEqual(["bench.html", "bench.json", "bench.md"]);
    expect(JSON.parse(await readFile(join(dir, "a/bench.json"), "utf8"))).toMatchObject({
      format: "k3-bench",
      ok: true,
    });
  });

  it("is not ok when the ids are not those that are known", async () => {
    const wrong = join(dir, "wrong");
    await cp(model, wrong, { recursive: true });
    const path = join(wrong, "k3-expectations.json");
    const expectations = JSON.parse(await readFile(path, "utf8"));
    const known = expectations.generations.find((one: { prompt: string | null }) => one.prompt !== null);
    known.generated_ids[0]++;
    await writeFile(path, JSON.stringify(expectations));
    const result = await bench({
      modelDir: wrong,
      memory: [MEMORY],
      runs: 1,
      generate: 2,
      cold: "none",
      outDir: join(dir, "w"),
    });
    expect(result).toMatchObject({ ok: false, points: [{ ids_as_expected: false }] });
    expect(result.lines[0]).toContain("WRONG IDS");
  });

  it("takes turns with another engine, and says no difference against itself", async () => {
    const cli = `node ${join(import.meta.dirname, "fake-engine.mjs")}`;
    const result = await bench({
      modelDir: model,
      memory: [MEMORY],
      generate: 3,
      cold: "none",
      outDir: join(dir, "b"),
      against: cli,
      idsPattern: "^ids: (.*)$",
      secondsPattern: "^token: ([0-9.]+) s",
    });
    expect(result.against).toMatchObject({
      ids_equal: true,
      seconds: [100, 100, 100],
      ratio: { noDifference: false },
    });
    expect(result.against!.ratio.ratio).toBeLessThan(0.01);
    await expect(
      bench({
        modelDir: model,
        memory: [MEMORY],
        runs: 1,
        cold: "none",
        outDir: join(dir, "c"),
        against: cli,
        idsPattern: "nothing",
        secondsPattern: "(x",
      }),
    ).rejects.toMatchObject({ code: "E_USAGE" });
  });

  it("compares two results, and refuses those of different machines unless told", async () => {
    const a = join(dir, "a/bench.json");
    const same = join(dir, "same.json");
    await copyFile(a, same);
    const comparison = await compareRuns(a, same);
    expect(comparison.points.every(({ ratio }) => ratio.ratio === 1 && ratio.noDifference)).toBe(true);
    const other = JSON.parse(await readFile(a, "utf8"));
    other.receipt.machine.cpu = "another";
    await writeFile(same, JSON.stringify(other));
    await expect(compareRuns(a, same)).rejects.toMatchObject({
      code: "E_USAGE",
      message: expect.stringContaining("cpu"),
    });
    expect((await compareRuns(a, same, { force: true })).differences).toHaveLength(1);
    await writeFile(same, "{}");
    await expect(compareRuns(a, same)).rejects.toMatchObject({ code: "E_DATA" });
  });
});

describe("the canary", { timeout: 300_000 }, () => {
  it("sings on the miniature: tokens of two layers and of all, and the residual after each layer", async () => {
    const result = await canary({ modelDir: model, memory: MEMORY });
    expect(result).toMatchObject({ ok: true, layers: 9 });
    expect(result.checks.filter(({ what }) => what.includes("2 layers"))).toHaveLength(1);
    expect(result.checks.filter(({ what }) => what.includes("after layer"))).toHaveLength(9);
  });

  it("sings on a partial download that holds two layers and the model's own end", async () => {
    const partial = join(dir, "partial");
    await cp(model, partial, { recursive: true });
    for (const name of await readdir(partial))
      if (/^model-0000[3-9]-/.test(name)) await rm(join(partial, name));
    const result = await canary({ modelDir: partial, memory: MEMORY });
    expect(result).toMatchObject({ ok: true, layers: 2 });
  });

  it("dies when one byte of a weight matrix is another", async () => {
    const damaged = join(dir, "damaged");
    await cp(model, damaged, { recursive: true });
    const path = join(damaged, "model-00001-of-000012.safetensors");
    const bytes = await readFile(path);
    // The exponent of a late weight: a large change of one value.
    bytes[bytes.length - 1] = bytes[bytes.length - 1]! ^ 0x40;
    await writeFile(path, bytes);
    expect((await canary({ modelDir: damaged, memory: MEMORY })).ok).toBe(false);
  });

  it("refuses a checkpoint of which nothing is known", async () => {
    const unknown = join(dir, "unknown");
    await cp(model, unknown, { recursive: true });
    await rm(join(unknown, "k3-expectations.json"));
    await expect(canary({ modelDir: unknown, memory: MEMORY })).rejects.toMatchObject({
      code: "E_CONFIG",
      exit: 2,
    });
  });
});

describe("doctor and probe", { timeout: 120_000 }, () => {
  it("measures the disk and leaves nothing behind", async () => {
    const probe = await probeDisk(dir, { seconds: 0.6, scratchBytes: 2 ** 26 });
    for (const rate of [probe.sequential, probe.scattered, probe.mixed]) expect(rate).toBeGreaterThan(1e6);
    expect((await readdir(dir)).filter((name) => name.startsWith(".k3-probe"))).toEqual([]);
  });

  it("says what comes next for a checkpoint that is there, with the Hub out of reach", async () => {
    const result = await doctor({ dir: model, probeSeconds: 0.3, endpoint: "http://127.0.0.1:9" });
    expect(result).toMatchObject({ ok: true, exit: 0, next_command: `k3 pack ${model} ${model}-trunk` });
    expect(result.findings).toContainEqual(
      expect.objectContaining({ level: "warn", message: expect.stringContaining("127.0.0.1:9") }),
    );
  });

  it("is not ok where 1.6 TB are missing, with both numbers", async () => {
    const result = await doctor({
      dir: join(dir, "empty"),
      probeSeconds: 0.3,
      endpoint: "http://127.0.0.1:9",
    });
    const space = result.findings.find(({ message }) => message.includes("of disk needed"));
    // The released model needs more than this machine's disk has in any place where tests run; if not, it may be ok.
    expect(result.ok).toBe(space === undefined);
    if (space) expect(space.message).toMatch(/\(\d+ bytes\) of disk needed, .* \(\d+ bytes\) free/);
    else expect(result.next_command).toContain("k3 fetch moonshotai/Kimi-K3");
  });
});
