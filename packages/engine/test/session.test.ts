import { execFileSync } from "node:child_process";
import { copyFile, readFile, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { StageError } from "@k3/stage";
import { withTempDir } from "@k3/testkit";
import { beforeAll, describe, expect, test } from "vitest";
import { Model, type ModelOptions, type Session } from "../src/index.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";

let miniature: PackedMiniature;
const ids = Array.from({ length: 40 }, (_, i) => (i * 29 + 3) % 190);

beforeAll(async () => {
  miniature = await packedMiniature();
});

async function withModel<T>(
  use: (model: Model) => Promise<T>,
  options: Partial<ModelOptions> = {},
): Promise<T> {
  const model = await Model.open({
    modelDir: miniature.dir,
    memory: 8e9,
    threads: 2,
    contextTokens: 128,
    sessions: 3,
    ...options,
  });
  try {
    return await use(model);
  } finally {
    await model.close();
  }
}

const bytes = (logits: Float32Array | null) =>
  Buffer.from(logits!.buffer, logits!.byteOffset, logits!.byteLength).toString("base64");

async function take(session: Session, count: number): Promise<number[]> {
  const taken: number[] = [];
  for await (const { id } of session.generate({ maxTokens: count })) taken.push(id);
  return taken;
}

const failure = async (promise: Promise<unknown>): Promise<StageError> => {
  const error = await promise.then(
    () => undefined,
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(StageError);
  return error as StageError;
};

describe("a session", () => {
  test("gives the same logits however the ids come", () =>
    withModel(async (model) => {
      const whole = model.session();
      await whole.prefill(ids, { allLogits: true });
      const parts = model.session();
      for (let at = 0; at < ids.length; at++) {
        await parts.prefill([ids[at]!]);
        const { vocabSize } = model.config;
        expect(bytes(parts.logits)).toBe(bytes(whole.allLogits!.slice(at * vocabSize, (at + 1) * vocabSize)));
      }
    }));

  test("keeps the logits of all positions only where there is room for them, planned or left", async () => {
    const budget = { memory: 700e6, contextTokens: 200_000, sessions: 2 };
    await withModel(async (model) => {
      const { budgetBytes, plannedBytes } = model.plan;
      const left = Math.floor((budgetBytes - plannedBytes) / (model.config.vocabSize * 4));
      const session = model.session();
      const many = Array<number>(left + 1).fill(3);
      expect(await failure(session.prefill(many, { allLogits: true }))).toMatchObject({
        code: "E_MEMORY",
        details: { given: budgetBytes - plannedBytes },
      });
      expect(session.ids).toEqual([]);
    }, budget);
    await withModel(
      async (model) => {
        const { vocabSize } = model.config;
        const { budgetBytes, plannedBytes, chunk, parts } = model.plan;
        expect(parts.logits).toBeGreaterThanOrEqual(40 * vocabSize * 4);
        const [one, other] = [model.session(), model.session()];
        await other.prefill(ids, { allLogits: true });
        expect(other.allLogits).toHaveLength(40 * vocabSize);
        // As many as fit, but not beside those that the other session keeps.
        const rows = Math.floor((parts.logits + budgetBytes - plannedBytes) / (vocabSize * 4));
        const most = Array<number>(rows <= 3 * chunk ? Math.floor(rows / 3) : rows - 2 * chunk).fill(3);
        const stopped = { allLogits: true, signal: AbortSignal.abort() };
        expect((await failure(one.prefill(most, stopped))).code).toBe("E_MEMORY");
        await other.prefill([1]);
        expect((await failure(one.prefill(most, stopped))).code).toBe("E_INTERRUPTED");
      },
      { ...budget, allLogits: 40 },
    );
    const tooMany = withModel(async () => undefined, { ...budget, allLogits: 1_000_000 });
    expect((await failure(tooMany)).code).toBe("E_MEMORY");
  });

  test("generates what a recomputation from the start gives", () =>
    withModel(async (model) => {
      const session = model.session();
      await session.prefill(ids);
      const generated = await take(session, 8);
      expect(session.ids).toEqual([...ids, ...generated]);
      expect(session.position).toBe(ids.length + 7);
      expect(session.logits).toBeNull(); // the last token is pending
      const again = model.session();
      for (let n = 0; n < generated.length; n++) {
        await again.prefill(n === 0 ? ids : [generated[n - 1]!]);
        const logits = again.logits!;
        expect(logits.indexOf(logits.reduce((a, b) => Math.max(a, b)))).toBe(generated[n]);
      }
    }));

  test("forks, rolls back, and refuses more than was planned", () =>
    withModel(async (model) => {
      const session = model.session();
      await session.prefill(ids);
      const snapshot = await session.snapshot();
      const fork = await session.fork();
      const expected = await take(session, 6);
      expect(await take(fork, 6)).toEqual(expected);
      expect((await failure(session.fork())).code).toBe("E_MEMORY");
      expect(() => model.session()).toThrow(/room for 3/);
      await session.prefill([1, 2, 3]);
      await session.rollback(snapshot);
      expect(session.ids).toEqual(ids);
      expect(await take(session, 6)).toEqual(expected);
      fork.close();
      (await session.fork()).close();
    }));

  test("continues from a saved state with the same bits, the pending token included", () =>
    withTempDir(async (dir) => {
      const path = join(dir, "state");
      const expected = await withModel(async (model) => {
        const session = model.session();
        await session.prefill(ids);
        await take(session, 3);
        await session.save(path);
        await session.prefill([7, 8]);
        return bytes(session.logits);
      });
      await withModel(async (model) => {
        const session = model.session();
        await session.prefill([5, 5, 5]);
        await session.load(path);
        expect(session.ids.slice(0, ids.length)).toEqual(ids);
        await session.prefill([7, 8]);
        expect(bytes(session.logits)).toBe(expected);
      });
    }));

  test("generates from a saved state without a new prompt", () =>
    withTempDir(async (dir) => {
      const path = join(dir, "state");
      await withModel(async (model) => {
        const session = model.session();
        await session.prefill(ids);
        await session.save(path);
        const expected = await take(session, 4);
        await session.load(path);
        expect(await take(session, 4)).toEqual(expected);
      });
    }));

  test("refuses states that are damaged, truncated, foreign or too long, and is then empty", () =>
    withTempDir(async (dir) => {
      const path = join(dir, "state");
      await withModel(async (model) => {
        const session = model.session();
        await session.prefill(ids);
        await session.save(path);
      });
      const good = await readFile(path);
      const cases: [string, (copy: string) => Promise<void>, RegExp][] = [
        ["truncated", (copy) => truncate(copy, good.length - 1000), /bytes/],
        ["empty", (copy) => truncate(copy, 0), /truncated/],
        ["longer", (copy) => writeFile(copy, Buffer.concat([good, Buffer.alloc(8)])), /bytes/],
        ["no state", (copy) => writeFile(copy, "hello, this is text"), /not a state/],
        ["flipped", (copy) => writeFile(copy, flip(good, good.length - 5000)), /damaged/],
        ["another version", (copy) => writeFile(copy, edit(good, '"version":1', '"version":9')), /version 9/],
        [
          "another model",
          (copy) => writeFile(copy, edit(good, '"configSha256":"', '"configSha256":"0')),
          /another config/,
        ],
      ];
      await withModel(async (model) => {
        for (const [name, damage, message] of cases) {
          const copy = join(dir, name);
          await copyFile(path, copy);
          await damage(copy);
          const session = model.session();
          await session.prefill([1, 2, 3]);
          const error = await failure(session.load(copy));
          expect(error.code, name).toBe("E_DATA");
          expect(error.message).toMatch(message);
          expect(session.ids).toEqual([]);
          expect(session.position).toBe(0);
          session.close();
        }
      });
      await withModel(
        async (model) => expect((await failure(model.session().load(path))).message).toMatch(/layers/),
        { layers: 2 },
      );
      await withModel(
        async (model) => expect((await failure(model.session().load(path))).code).toBe("E_USAGE"),
        { contextTokens: 16 },
      );
    }));

  test("that has run ids is empty too after a load that failed, whatever stood in the way", () =>
    withTempDir(async (dir) => {
      const path = join(dir, "state");
      const pipe = join(dir, "pipe");
      execFileSync("mkfifo", [pipe]);
      await withModel(async (model) => {
        const fresh = model.session();
        await fresh.prefill(ids);
        await fresh.save(path);
        await writeFile(path, flip(await readFile(path), 5000));
        const expected = bytes(fresh.logits);
        const cases = [
          [join(dir, "nothing"), "ENOENT"],
          [path, "E_DATA"],
          [pipe, "E_DATA"],
          [dir, "E_DATA"],
        ] as const;
        for (const [file, code] of cases) {
          const session = model.session();
          await session.prefill([1, 2, 3]);
          await expect(session.load(file)).rejects.toMatchObject({ code });
          expect(session.position).toBe(0);
          await session.prefill(ids);
          expect(bytes(session.logits)).toBe(expected);
          session.close();
        }
      });
    }));

  test("takes more ids than a call can have arguments", () =>
    withModel(
      async (model) => {
        const session = model.session();
        const many = Array<number>(200_000).fill(3);
        const stop = AbortSignal.abort();
        expect((await failure(session.prefill(many, { signal: stop }))).code).toBe("E_INTERRUPTED");
        expect(session.ids).toHaveLength(200_000);
      },
      { contextTokens: 200_000 },
    ));

  test("refuses ids outside the vocabulary, no ids, overlapping calls and a full context", () =>
    withModel(
      async (model) => {
        const session = model.session();
        for (const bad of [[-1], [model.config.vocabSize], [1.5], [Number.NaN], []]) {
          expect((await failure(session.prefill(bad))).code).toBe("E_USAGE");
        }
        expect((await failure(take(session, 1))).message).toMatch(/prefill first/);
        const first = session.prefill([1, 2]);
        expect((await failure(session.prefill([3]))).message).toMatch(/busy/);
        await first;
        expect((await failure(session.prefill(Array(20).fill(1)))).message).toMatch(/context of 16/);
        expect(await take(session, 14)).toHaveLength(14);
        session.close();
        session.close();
        expect((await failure(session.prefill([1]))).message).toMatch(/closed/);
      },
      { contextTokens: 16 },
    ));
});

function flip(bytes: Buffer, at: number): Buffer {
  const copy = Buffer.from(bytes);
  copy[at]! ^= 16;
  return copy;
}

/** Replaces text in the header by text of any length, with the length field put right. */
function edit(bytes: Buffer, before: string, after: string): Buffer {
  const length = bytes.readUInt32LE(8);
  const header = Buffer.from(
    bytes
      .subarray(12, 12 + length)
      .toString("utf8")
      .replace(before, after),
  );
  const size = Buffer.alloc(4);
  size.writeUInt32LE(header.length);
  return Buffer.concat([bytes.subarray(0, 8), size, header, bytes.subarray(12 + length)]);
}
