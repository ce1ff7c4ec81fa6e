import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFile, cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pack } from "@k3/pack";
import type { StageEvent } from "@k3/stage";
import { makeMiniature } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { bench, canary, compareRuns, pointLabel } from "../src/index.ts";

let dir: string;
let model: string;
let bf16: string;
let none: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-bench-"));
  model = join(dir, "model");
  await makeMiniature(model);
  [bf16, none] = [join(dir, "bf16"), join(dir, "none")];
  await pack({ modelDir: model, trunkDir: bf16, codec: "bf16" });
  await pack({ modelDir: model, trunkDir: none, codec: "none" });
}, 300_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

const MEMORY = 400e6;
/** As git itself says it; null where the tests do not run in a repository. */
const git = spawnSync("git", ["describe", "--always", "--dirty", "--abbrev=40", "--match="], {
  cwd: import.meta.dirname,
  encoding: "utf8",
});
const commit = git.status === 0 ? git.stdout.trim() : null;

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
      commit,
      options: { runs: 3, order_seed: expect.any(Number) },
      model: { layers: 9 },
    });
    expect((await readdir(join(dir, "a"))).sort()).toEqual([
      "bench.html",
      "bench.json",
      "bench.lock",
      "bench.md",
    ]);
    expect(JSON.parse(await readFile(join(dir, "a/bench.json"), "utf8"))).toMatchObject({
      format: "k3-bench",
      ok: true,
    });
  });

  it("measures codecs side by side: every point of prompts x budgets x threads x trunks, each with its trunk's hash", async () => {
    const result = await bench({
      modelDir: model,
      trunkDir: [bf16, none, null],
      memory: [MEMORY, MEMORY + 1e6],
      threads: [1],
      prompts: ["The capital of France is", "Once upon a time"],
      generate: 3,
      cold: "evict",
      outDir: join(dir, "codecs"),
    });
    expect(result.ok).toBe(true);
    const found = result.points.map(({ prompt, memory, codec }) => [prompt, memory, codec]);
    const wanted = ["The capital of France is", "Once upon a time"].flatMap((prompt) =>
      [MEMORY, MEMORY + 1e6].flatMap((memory) =>
        ["bf16", "none", null].map((codec) => [prompt, memory, codec]),
      ),
    );
    expect(found).toEqual(wanted);
    const hash = async (path: string) =>
      createHash("sha256")
        .update(await readFile(join(path, "trunk.json")))
        .digest("hex");
    expect(result.points.slice(0, 3).map(({ trunk }) => trunk)).toEqual([
      { dir: bf16, manifest_sha256: await hash(bf16) },
      { dir: none, manifest_sha256: await hash(none) },
      null,
    ]);
    expect(result.receipt.trunk_manifest_sha256).toBeNull();
    for (const { runs, codec } of result.points) {
      // A ratio is only called a difference from four runs a side on.
      expect(runs).toHaveLength(4);
      for (const run of runs) expect(run.codec).toBe(codec);
    }
    // The same dense weights, packed to less: what has to be read says which trunk was.
    const owed = result.points.slice(0, 3).map(({ runs }) => runs[0]!.owed_bytes);
    expect(owed[0]).toBeLessThan(owed[1]!);
    expect(result.codec_ratios.map(({ point, over }) => [point, over])).toEqual(
      ["The capital of France is", "Once upon a time"].flatMap((prompt) =>
        ["400 MB", "401 MB"].flatMap((memory) => [
          [`${memory}, 1 thread, codec none, "${prompt}"`, "codec bf16"],
          [`${memory}, 1 thread, no trunk, "${prompt}"`, "codec bf16"],
        ]),
      ),
    );
    const report = await readFile(join(dir, "codecs/bench.md"), "utf8");
    for (const label of ["400 MB, 1 thread, codec bf16 |", "401 MB, 1 thread, codec none |", "no trunk |"])
      expect(report).toContain(label);
    if (result.receipt.accounts.block.length > 0)
      for (const { runs } of result.points)
        for (const run of runs) expect(run.block_read_bytes).toBeGreaterThan(0);
  });

  it("compares two results codec by codec, whatever the order in which they were measured", async () => {
    const measured = JSON.parse(await readFile(join(dir, "codecs/bench.json"), "utf8"));
    const turned = { ...measured, points: [...measured.points].reverse() };
    // Twice as slow without a trunk, as before with one.
    for (const point of turned.points)
      if (point.codec === null)
        point.runs = point.runs.map((run: { decode: number }) => ({ ...run, decode: run.decode * 2 }));
    const path = join(dir, "turned.json");
    await writeFile(path, JSON.stringify(turned));
    const { points } = await compareRuns(path, join(dir, "codecs/bench.json"));
    const decode = points.filter(({ phase }) => phase === "decode");
    expect(decode).toHaveLength(12);
    for (const { label, ratio } of decode) expect(ratio.ratio).toBe(label.includes("no trunk") ? 2 : 1);
  });

  it("what was not measured is not called so: one generated token comes of the prefill", async () => {
    const settings = { modelDir: model, memory: [MEMORY], runs: 3, cold: "none" as const };
    const { points, lines } = await bench({ ...settings, generate: 1, outDir: join(dir, "short") });
    for (const table of [points[0]!.median, points[0]!.spread])
      expect(table).toMatchObject({ prefill: expect.any(Number), first_decode: null, decode: null });
    expect(lines[1]).toContain("sustained decode was not measured");
    expect(await readFile(join(dir, "short/bench.md"), "utf8")).toContain("| not measured | not measured |");
    await expect(bench({ ...settings, prompts: [""] })).rejects.toMatchObject({ code: "E_USAGE" });
  });

  it("one trunk gives its hash in the receipt; a directory that holds none is refused before anything runs", async () => {
    const settings = {
      modelDir: model,
      memory: [MEMORY],
      threads: [2],
      runs: 1,
      generate: 2,
      cold: "none" as const,
    };
    const result = await bench({ ...settings, trunkDir: bf16, outDir: join(dir, "one") });
    expect(result.receipt.trunk_manifest_sha256).toBe(result.points[0]!.trunk!.manifest_sha256);
    expect(result).toMatchObject({ points: [{ codec: "bf16" }], codec_ratios: [] });
    const { points } = result;
    expect(pointLabel(points[0]!, points)).toBe("400 MB, 2 threads, codec bf16");
    const twice = { ...points[0]!, trunk: { dir: "/ssd/trunk", manifest_sha256: "" } };
    expect(pointLabel(twice, [...points, twice])).toBe("400 MB, 2 threads, codec bf16 of /ssd/trunk");
    expect(result.lines).toContainEqual(
      expect.stringContaining("noise floor: not known from one run a point"),
    );
    await expect(bench({ ...settings, trunkDir: [bf16, model] })).rejects.toMatchObject({
      code: "E_DATA",
      message: expect.stringContaining(model),
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
      trunkDir: [bf16, null],
      generate: 3,
      cold: "none",
      outDir: join(dir, "w"),
      against: `node ${join(import.meta.dirname, "fake-engine.mjs")}`,
      idsPattern: "^ids: (.*)$",
      secondsPattern: "^token: ([0-9.]+) s",
    });
    expect(result.ok).toBe(false);
    for (const point of result.points) expect(point.ids_as_expected).toBe(false);
    expect(result.lines[0]).toContain("WRONG IDS");
    // Both engines agree, and neither speed means anything.
    expect(result).toMatchObject({ codec_ratios: [], against: { ids_equal: true, ratio: null } });
    expect(result.lines.at(-1)).toContain("no ratio: our ids are wrong");
    expect(await readFile(join(dir, "w/bench.md"), "utf8")).toContain(
      "our ids are WRONG, so there is no ratio",
    );
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
      seconds: [100, 100, 100, 100],
      ratio: { noDifference: false, verdict: "difference", runs: 4 },
    });
    expect(result.against!.ratio!.ratio).toBeLessThan(0.01);
    // What the other engine says may be of any kind.
    const { runOther, otherEngine } = await import("../src/against.ts");
    const said = (command: string, pattern: string) =>
      runOther(otherEngine(command, "ids ([0-9,]+)", pattern), undefined);
    await expect(said("echo ids 1,2; echo decode 0", "decode ([0-9.]+)")).rejects.toMatchObject({
      code: "E_USAGE",
      message: expect.stringContaining("2 ids and 0 times"),
    });
    await expect(said(`echo ids 1; printf %060d 0`, "(?:(0+)+)b")).rejects.toMatchObject({
      code: "E_USAGE",
      message: "--seconds-pattern was not done after 5 s",
    });
    await expect(said("yes", "y")).rejects.toMatchObject({
      code: "E_DATA",
      message: '"yes" printed more than 64.0 MB',
    });
    const events: StageEvent[] = [];
    const settings = { modelDir: model, memory: [MEMORY], cold: "none" as const, outDir: join(dir, "c") };
    const refused = bench({
      ...settings,
      ...{ against: cli, idsPattern: "nothing", secondsPattern: "(x" },
      onEvent: (event) => events.push(event),
    });
    await expect(refused).rejects.toMatchObject({
      code: "E_USAGE",
      message: expect.stringContaining("--seconds-pattern"),
    });
    expect(events).toEqual([]);
    await expect(
      bench({ ...settings, against: "exit 9", idsPattern: "i", secondsPattern: "s" }),
    ).rejects.toMatchObject({ code: "E_DATA", message: '"exit 9" ended with 9 and said nothing' });
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
    const wrong = JSON.parse(await readFile(a, "utf8"));
    wrong.points[1].ids_as_expected = false;
    await writeFile(same, JSON.stringify(wrong));
    for (const [left, right] of [
      [a, same],
      [same, a],
    ] as const)
      await expect(compareRuns(left, right)).rejects.toMatchObject({
        code: "E_USAGE",
        message: expect.stringContaining(`${same}: wrong ids at 400000000 bytes, 2 threads`),
      });
    expect((await compareRuns(a, same, { force: true })).lines[0]).toContain(`${same}: wrong ids at`);
    // A report's directory stands for its bench.json.
    expect((await compareRuns(join(dir, "a"), a)).points).toEqual(comparison.points);
    for (const seconds of [-1, 0, "1"]) {
      const odd = JSON.parse(await readFile(a, "utf8"));
      odd.points[0].runs[0].decode = seconds;
      await writeFile(same, JSON.stringify(odd));
      await expect(compareRuns(a, same)).rejects.toMatchObject({ code: "E_DATA" });
    }
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
