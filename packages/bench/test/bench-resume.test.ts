import { spawn } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readJournal, type StageEvent } from "@k3/stage";
import { makeMiniature } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { bench } from "../src/index.ts";
import { turns } from "../src/turns.ts";

let dir: string;
let model: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-bench-resume-"));
  model = join(dir, "model");
  await makeMiniature(model);
}, 300_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

const settings = () => ({
  modelDir: model,
  memory: [400e6],
  threads: [1, 2],
  runs: 2,
  generate: 3,
  cold: "none" as const,
  outDir: join(dir, "out"),
});

/** Starts the same bench in a process of its own and kills it when it says that it begins a run. */
async function killedAt(message: string): Promise<unknown[]> {
  const built = join(import.meta.dirname, "../dist/index.js");
  const code = `import { bench } from ${JSON.stringify(built)};
    await bench({ ...${JSON.stringify(settings())}, onEvent: (event) => console.log(JSON.stringify(event)) });`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], { detached: true });
  child.stdout.on("data", (text: Buffer) => {
    if (text.includes(message)) process.kill(-child.pid!, "SIGKILL");
  });
  let errors = "";
  child.stderr.on("data", (text: Buffer) => (errors += text));
  const signal = await new Promise((done) => child.once("close", (_, signal) => done(signal)));
  expect({ signal, errors }).toEqual({ signal: "SIGKILL", errors: "" });
  const { records } = await readJournal(join(dir, "out/bench.journal"));
  return records.slice(1).map((record) => (record as { run: unknown }).run);
}

describe("a bench that was killed", { timeout: 300_000 }, () => {
  it("continues after its last finished run, keeps what was measured, and says so", async () => {
    expect(await killedAt("run 2 of 4")).toHaveLength(1);
    const finished = await killedAt("run 4 of 4");
    expect(finished).toHaveLength(3);
    const events: StageEvent[] = [];
    const result = await bench({ ...settings(), onEvent: (event) => events.push(event) });
    expect(result).toMatchObject({ ok: true, resumed_runs: 3 });
    expect(result.points.map(({ runs }) => runs.length)).toEqual([2, 2]);
    const runs = result.points.flatMap((point) => point.runs);
    for (const run of finished) expect(runs).toContainEqual(run);
    const begun = events.filter((event) => event.type === "log").map(({ message }) => message);
    expect(begun.filter((message) => message.startsWith("run "))).toEqual([
      expect.stringMatching(/^run 4 of 4/),
    ]);
    expect(result.lines.at(-1)).toMatch(/^runs that were measured before .*: 3$/);
    expect(await readFile(join(dir, "out/bench.md"), "utf8")).toContain("started again: 3");
    expect((await readdir(join(dir, "out"))).filter((name) => !name.endsWith(".old")).sort()).toEqual([
      "bench.html",
      "bench.json",
      "bench.lock",
      "bench.md",
    ]);
  });

  it("starts over where something else is asked for, and says what differs", async () => {
    expect(await killedAt("run 2 of 4")).toHaveLength(1);
    const events: StageEvent[] = [];
    const onEvent = (event: StageEvent) => events.push(event);
    const result = await bench({ ...settings(), runs: 1, generate: 4, onEvent });
    expect(result).toMatchObject({ resumed_runs: 0, receipt: { options: { runs: 1, generate: 4 } } });
    expect(events[0]).toMatchObject({
      level: "warn",
      message: expect.stringMatching(
        /were made with another runs, generate: starting over; they are kept in/,
      ),
    });
    const { records } = await readJournal(join(dir, "out/bench.journal.old"));
    expect(records).toHaveLength(2);
  });

  it("says so where the finished runs cannot be read any more", async () => {
    expect(await killedAt("run 2 of 4")).toHaveLength(1);
    await writeFile(join(dir, "out/bench.journal"), "garbage\n");
    const events: StageEvent[] = [];
    const onEvent = (event: StageEvent) => events.push(event);
    expect(await bench({ ...settings(), runs: 1, onEvent })).toMatchObject({ resumed_runs: 0 });
    expect(events[0]).toMatchObject({ level: "warn", message: expect.stringContaining("cannot be read") });
  });

  it("lets one process at a time measure into a directory", async () => {
    const first = bench(settings());
    const both = await Promise.allSettled([first, bench(settings())]);
    expect(both.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
    const refused = both.find((one) => one.status === "rejected");
    expect(refused).toMatchObject({ reason: { code: "E_LOCKED", exit: 7 } });
  });
});

describe("the order of the runs", () => {
  it("has every point once in each round, the other engine A B B A, and is another for another seed", () => {
    const order = turns(3, 4, { other: true, seed: 1 });
    expect(order).toHaveLength(16);
    const rounds = [0, 4, 8, 12].map((at) => order.slice(at, at + 4));
    for (const round of rounds) expect([...round].sort()).toEqual([0, 1, 2, "other"]);
    expect(rounds.map((round) => round.indexOf("other"))).toEqual([3, 0, 3, 0]);
    expect(turns(3, 4, { other: true, seed: 1 })).toEqual(order);
    const orders = Array.from({ length: 20 }, (_, seed) => turns(3, 4, { other: true, seed }).join());
    expect(new Set(orders).size).toBeGreaterThan(10);
  });
});
