import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { type ProgressEvent, StageError } from "@k3/stage";
import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { Model } from "../src/index.ts";
import { loadNative } from "../src/loader.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";
import { continueWith } from "./reference.ts";

let miniature: PackedMiniature;
let expected: number[];
const ids = [5, 6, 7, 8, 9, 10];

beforeAll(async () => {
  miniature = await packedMiniature();
  expected = (await continueWith({ modelDir: miniature.dir }, ids, 4)).generated;
});

const open = (changes: Partial<Parameters<typeof Model.open>[0]> = {}) =>
  Model.open({ modelDir: miniature.dir, memory: 8e9, threads: 2, contextTokens: 512, ...changes });

async function take(model: Model): Promise<number[]> {
  const session = model.session();
  await session.prefill(ids);
  const generated: number[] = [];
  for await (const { id } of session.generate({ maxTokens: 4 })) generated.push(id);
  session.close();
  return generated;
}

describe("models", () => {
  test("several at the same time, several sessions on each", async () => {
    const models = await Promise.all([
      open({ sessions: 3 }),
      open({ sessions: 3, trunkDir: miniature.trunks.bf16, threads: 3 }),
    ]);
    const runs = models.flatMap((model) => [take(model), take(model), take(model)]);
    for (const generated of await Promise.all(runs)) expect(generated).toEqual(expected);
    await Promise.all(models.map((model) => model.close()));
  });

  test("closed in mid-pass: the pass is interrupted, all later calls are refused, closing twice is safe", async () => {
    const model = await open();
    const session = model.session();
    const running = session.prefill(Array(400).fill(3)).catch((error: StageError) => error.code);
    await Promise.all([model.close(), model.close()]);
    expect(["E_INTERRUPTED", "E_USAGE"]).toContain(await running);
    expect(() => model.stats()).toThrow(/closed/);
    expect(() => model.session()).toThrow(/closed/);
    await expect(session.prefill([1])).rejects.toBeInstanceOf(StageError);
  });

  test("closed twice: neither call is done before the other", async () => {
    const model = await open();
    const running = model
      .session()
      .prefill(Array(400).fill(3))
      .catch(() => "stopped");
    const done: string[] = [];
    const first = model.close().then(() => done.push("first"));
    await model.close();
    expect(done).toEqual(["first"]);
    await Promise.all([first, running]);
    await model.close();
  });

  test("an aborted signal stops a pass; the session can be rolled back and goes on", async () => {
    const model = await open({ sessions: 2 });
    const session = model.session();
    await session.prefill(ids);
    const snapshot = await session.snapshot();
    const controller = new AbortController();
    const long = session.prefill(Array(450).fill(3), { signal: controller.signal });
    setTimeout(() => controller.abort(), 5);
    await expect(long).rejects.toMatchObject({ code: "E_INTERRUPTED", exit: 130 });
    await session.rollback(snapshot);
    const generated: number[] = [];
    for await (const { id } of session.generate({ maxTokens: 4 })) generated.push(id);
    expect(generated).toEqual(expected);
    const aborted = AbortSignal.abort();
    await expect(session.prefill([1], { signal: aborted })).rejects.toMatchObject({ code: "E_INTERRUPTED" });
    await expect(open({ signal: aborted })).rejects.toMatchObject({ code: "E_INTERRUPTED" });
    await model.close();
  });

  test("tell how far a pass is", async () => {
    const model = await open();
    const events: ProgressEvent[] = [];
    await model
      .session()
      .prefill(Array(300).fill(2), { onEvent: (event) => event.type === "progress" && events.push(event) });
    await model.close();
    expect(events.length).toBeGreaterThan(0);
    const last = events.at(-1)!;
    expect(last).toMatchObject({ stage: "run", unit: "layers", done: model.layers, total: model.layers });
    expect(last.phase).toMatch(/prompt, 300 of 300 tokens: layer/);
    expect(last.detail!["read_bytes"]).toBeTypeOf("number");
  });

  test.each([false, true])(
    "end with a worker thread while their tables are checked (and refused: %s)",
    async (spoiled) => {
      const script = join(import.meta.dirname, "faults/preparing-worker.mjs");
      const worker = new Worker(script, { workerData: { modelDir: miniature.dir, spoiled } });
      await once(worker, "message");
      await sleep(50);
      expect(await worker.terminate()).toBe(1);
    },
  );

  test("work in worker threads, and end with them in mid-step", async () => {
    const script = join(import.meta.dirname, "faults/worker.mjs");
    const worker = (leave: boolean) =>
      new Worker(script, { workerData: { modelDir: miniature.dir, ids, leave } });
    const [generated] = (await once(worker(false), "message")) as [number[]];
    expect(generated).toEqual(expected);
    for (let i = 0; i < 3; i++) expect((await once(worker(true), "exit"))[0]).toBe(7);
    const both = await Promise.all([once(worker(false), "message"), once(worker(false), "message")]);
    expect(both).toEqual([[expected], [expected]]);
  });

  test("give everything back: fifty of them leave no memory behind", async () => {
    const rss = async (count: number) => {
      for (let i = 0; i < count; i++) {
        const model = await open();
        await model.session().prefill(ids);
        await model.close();
      }
      globalThis.gc?.();
      return process.memoryUsage.rss();
    };
    await rss(5);
    const before = await rss(5);
    const after = await rss(50);
    // A leak of one model's areas (tens of MB) fifty times would be gigabytes.
    expect(after - before).toBeLessThan(200e6);
  });
});

describe("the addon", () => {
  test("takes any argument without a crash", () => {
    const addon = loadNative();
    const anything = fc.oneof(
      fc.anything({ withTypedArray: true, withDate: true }),
      fc.constant(new Uint32Array(16)),
    );
    fc.assert(
      fc.property(anything, anything, anything, (a, b, c) => {
        for (const call of [
          () => new addon.NativeEngine(a as never),
          () => addon.NativeEngine.prototype.open.call(a, b as never),
          () => addon.NativeEngine.prototype.forward.call(a, b as never, c as never, 1),
          () => addon.isa(a as never),
          () => new addon.NativeEngine({ config: a, files: b, tensors: c } as never),
        ]) {
          try {
            call();
          } catch (error) {
            expect(error).toBeInstanceOf(Error);
          }
        }
      }),
      { numRuns: 200 },
    );
  });
});
