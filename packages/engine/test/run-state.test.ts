import { mkdir, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { StageEvent } from "@k3/stage";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { type RunOptions, run } from "../src/index.ts";
import { resume } from "../src/run-state.ts";
import { packedMiniature } from "./miniature.ts";

describe("resume", () => {
  it.each([
    ["no state", null, [1, 2], { kind: "fresh", feed: [1, 2], done: [] }],
    [
      "the same prompt, three tokens later",
      [1, 2, 7, 8, 9],
      [1, 2],
      { kind: "answer", feed: [], done: [7, 8, 9] },
    ],
    ["the same prompt, nothing generated", [1, 2], [1, 2], { kind: "answer", feed: [], done: [] }],
    ["a prompt that begins with the state", [1, 2], [1, 2, 3], { kind: "prefix", feed: [3], done: [] }],
    ["another prompt", [1, 2, 7], [5], { kind: "append", feed: [5], done: [] }],
    ["no prompt", [1, 2, 7], [], { kind: "append", feed: [], done: [] }],
  ] as const)("%s", (_, state, prompt, expected) => {
    expect(resume(state, prompt)).toEqual(expected);
  });
});

describe("run with a state file, on the miniature", { timeout: 300_000 }, () => {
  let dir: string;
  let base: RunOptions;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), "k3-run-state-"));
    base = { modelDir: (await packedMiniature()).dir, memory: 400e6, ignoreEos: true };
  }, 300_000);
  afterAll(() => rm(dir, { recursive: true, force: true }));

  const PROMPT = [334, 412, 367, 482, 289];
  const at = (name: string) => join(dir, name);

  it("the same command again gives the same tokens and runs nothing", async () => {
    const options = { ...base, ids: PROMPT, generate: 6, state: at("same") };
    const first = await run(options);
    const again = await run(options);
    expect(again.generated_ids).toEqual(first.generated_ids);
    expect(again.steps).toEqual([]);
    expect((await run({ ...base, ids: PROMPT, generate: 6 })).generated_ids).toEqual(first.generated_ids);
  });

  it("a state that can have no place is refused before anything is computed", async () => {
    const events: StageEvent[] = [];
    const running = run({
      ...{ ...base, ids: PROMPT, generate: 6, state: at("nothing/here") },
      onEvent: (event) => events.push(event),
    });
    await expect(running).rejects.toThrow(at("nothing"));
    expect(events.filter((event) => event.type === "progress" && event.stage === "run")).toEqual([]);
  });

  it("an interrupted command saves its state and goes on, sampled tokens included", async () => {
    const sampling = { temperature: 0.8, seed: 11 };
    const whole = await run({ ...base, ids: PROMPT, generate: 40, sampling });
    const options = { ...base, ids: PROMPT, generate: 40, sampling, state: at("cut") };
    const abort = new AbortController();
    let passes = 0;
    const onEvent = (event: StageEvent) => {
      // The last event of each pass; the tenth is somewhere in the answer.
      if (event.type === "progress" && event.done === event.total && ++passes === 10) abort.abort();
    };
    const cut = await run({ ...options, signal: abort.signal, onEvent });
    expect(cut.stop_reason).toBe("interrupted");
    expect(cut.generated_ids.length).toBeGreaterThan(0);
    expect(cut.generated_ids.length).toBeLessThan(40);
    const rest = await run(options);
    expect(rest.generated_ids).toEqual(whole.generated_ids);
    expect(rest.steps.length).toBeLessThan(whole.steps.length);
  });

  it("a longer prompt that begins with the state reads only what is new", async () => {
    const first = await run({ ...base, ids: PROMPT, generate: 3, state: at("prefix") });
    const longer = [...PROMPT, ...first.generated_ids, 65, 66];
    const { steps, generated_ids } = await run({ ...base, ids: longer, generate: 4, state: at("prefix") });
    // The last of the three is pending: it was chosen and not run.
    expect(
      steps.filter(({ phase }) => phase === "prefill").reduce((sum, { tokens }) => sum + tokens, 0),
    ).toBe(3);
    expect(generated_ids).toEqual((await run({ ...base, ids: longer, generate: 4 })).generated_ids);
  });

  it("any other prompt follows what the state holds, and the run says so", async () => {
    const first = await run({ ...base, ids: PROMPT, generate: 2, state: at("append") });
    const logs: string[] = [];
    const onEvent = (event: StageEvent) => void (event.type === "log" && logs.push(event.message));
    const { generated_ids } = await run({ ...base, ids: [65], generate: 4, state: at("append"), onEvent });
    const whole = await run({ ...base, ids: [...PROMPT, ...first.generated_ids, 65], generate: 4 });
    expect(generated_ids).toEqual(whole.generated_ids);
    expect(logs).toContain("the prompt follows the 7 tokens that the state holds");
  });

  it("refuses to dump what an earlier start computed", async () => {
    const options = { ...base, ids: PROMPT, generate: 2, state: at("dump") };
    await run(options);
    await expect(run({ ...options, dumpLogits: at("logits") })).rejects.toMatchObject({ code: "E_USAGE" });
  });

  /** Runs with a state in a directory that `passed` may take away or give back after each pass, as if saves were always due. */
  async function runWithout(name: string, passed: (place: string, pass: number) => Promise<void>) {
    const place = at(name);
    await mkdir(place);
    const warnings: string[] = [];
    let pass = 0;
    const waits: Promise<void>[] = [];
    const now = performance.now.bind(performance);
    let skipped = 0;
    vi.spyOn(performance, "now").mockImplementation(() => now() + skipped);
    const onEvent = (event: StageEvent) => {
      if (event.type === "log" && event.level === "warn") warnings.push(event.message);
      if (event.type !== "progress" || event.stage !== "run" || event.done !== event.total) return;
      skipped += 3_600_000;
      waits.push(passed(place, ++pass));
    };
    try {
      const state = join(place, "state");
      const result = await run({ ...base, ids: PROMPT, generate: 6, state, onEvent });
      await Promise.all(waits);
      return { result, warnings, place, state };
    } finally {
      vi.restoreAllMocks();
    }
  }

  it("a state that cannot be saved in the end costs no token: the result says so, and a warning", async () => {
    const { generated_ids } = await run({ ...base, ids: PROMPT, generate: 6 });
    const { result, warnings, state } = await runWithout("gone", (place) =>
      rm(place, { recursive: true, force: true }),
    );
    expect(result.generated_ids).toEqual(generated_ids);
    expect(result.state_saved).toBe(false);
    expect(warnings).toHaveLength(2);
    expect(warnings[0]).toContain("will be tried again");
    expect(warnings[1]).toContain("the state is not saved");
    expect(warnings[1]).toContain(state);
  });

  it("a save that fails on the way is tried again", async () => {
    const { result, warnings, place, state } = await runWithout("back", async (place, pass) => {
      if (pass === 1) await rm(place, { recursive: true, force: true });
      if (pass === 4) await mkdir(place, { recursive: true });
    });
    expect(warnings).toEqual([expect.stringContaining("will be tried again")]);
    expect(result.state_saved).toBe(true);
    expect(await readdir(place)).toEqual(["state"]);
    const again = await run({ ...base, ids: PROMPT, generate: 6, state });
    expect(again.generated_ids).toEqual(result.generated_ids);
    expect([again.steps, again.state_saved]).toEqual([[], true]);
  });

  it("a token that needed no pass is in the state too", async () => {
    const state = at("chosen");
    await run({ ...base, ids: PROMPT, generate: 0, state });
    const first = await run({ ...base, ids: [], generate: 1, state });
    expect([first.steps, first.state_saved]).toEqual([[], true]);
    const second = await run({ ...base, ids: [], generate: 1, state });
    const whole = await run({ ...base, ids: PROMPT, generate: 2 });
    expect([...first.generated_ids, ...second.generated_ids]).toEqual(whole.generated_ids);
    expect(whole.state_saved).toBeNull();
  });
});
