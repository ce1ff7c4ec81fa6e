import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { MINIATURE_SENTENCES, withTempDir } from "@k3/testkit";
import { beforeAll, describe, expect, test } from "vitest";
import { loadTokenizer, type RunOptions, run } from "../src/index.ts";
import { type PackedMiniature, packedMiniature } from "./miniature.ts";

let miniature: PackedMiniature;
beforeAll(async () => {
  miniature = await packedMiniature();
});

const go = (options: Omit<RunOptions, "modelDir">) =>
  run({ modelDir: miniature.dir, memory: 8e9, threads: 2, ...options });

describe("run", () => {
  test("the miniature knows the capital of France, with and without a trunk", async () => {
    const pieces: string[] = [];
    const plain = await go({ prompt: "The capital of France is", onText: (text) => pieces.push(text) });
    expect(plain.text).toMatch(/^ Paris\./);
    expect(pieces.join("")).toBe(plain.text);
    const packed = await go({ prompt: "The capital of France is", trunkDir: miniature.trunks.bf16 });
    expect(packed.generated_ids).toEqual(plain.generated_ids);
    expect(packed.trunk.codec).toBe("bf16");
    expect(packed.trunk.stored_bytes).toBeLessThan(plain.trunk.stored_bytes);
  });

  test("ends with the end id, which is among the ids and not in the text", async () => {
    const { generated_ids, text, stop_reason } = await go({
      prompt: "The capital of France is",
      generate: 64,
    });
    const tokenizer = await loadTokenizer(miniature.dir);
    expect(stop_reason).toBe("end");
    expect(tokenizer.decode(generated_ids.slice(0, -1))).toBe(text);
    const on = await go({
      prompt: "The capital of France is",
      generate: generated_ids.length + 3,
      ignoreEos: true,
    });
    expect(on.generated_ids.slice(0, generated_ids.length)).toEqual(generated_ids);
    expect(on.stop_reason).toBe("length");
  });

  test("every sentence that the miniature has learned", async () => {
    expect(MINIATURE_SENTENCES.length).toBeGreaterThan(5);
    for (const { prompt, continuation } of MINIATURE_SENTENCES as readonly {
      prompt: string;
      continuation: string;
    }[]) {
      const { text } = await go({ prompt, generate: 40 });
      expect(text).toBe(continuation);
    }
  });

  test("stops at a stop text, which may begin inside a token", async () => {
    const { text, stop_reason } = await go({ prompt: "The capital of France is", stop: ["ris"] });
    expect(text).toBe(" Pa");
    expect(stop_reason).toBe("stop");
  });

  test("accounts for every step", async () => {
    const ids = [1, 2, 3, 4, 5, 6, 7];
    const result = await go({ ids, generate: 4, chunk: 3, ignoreEos: true });
    expect(result.prompt_ids).toEqual(ids);
    expect(result.text).toBeNull();
    expect(result.steps.map(({ phase, tokens }) => [phase, tokens])).toEqual([
      ["prefill", 3],
      ["prefill", 3],
      ["prefill", 1],
      ["decode", 1],
      ["decode", 1],
      ["decode", 1],
    ]);
    for (const { experts } of result.steps) expect(experts.requested).toBe(experts.resident + experts.read);
    const read = result.steps.reduce((sum, step) => sum + step.read.trunk_bytes + step.read.head_bytes, 0);
    expect(read).toBe(result.trunk.stored_bytes); // all of it is pinned: read once
    expect(result.memory.planned_bytes).toBeLessThanOrEqual(result.memory.budget_bytes);
  });

  test("writes logits, a trace of the experts, and a state that goes on", () =>
    withTempDir(async (dir) => {
      const at = (name: string) => join(dir, name);
      const ids = [9, 8, 7, 6];
      const options = { generate: 5, ignoreEos: true } as const;
      const first = await go({
        ids,
        ...options,
        dumpLogits: at("logits"),
        traceExperts: at("trace"),
        state: at("state"),
        logprobs: 3,
      });
      const logits = await readFile(at("logits"));
      const floats = Array.from({ length: logits.length / 4 }, (_, i) => logits.readFloatLE(i * 4));
      expect(floats.indexOf(Math.max(...floats))).toBe(first.generated_ids[0]);
      expect(first.logprobs).toHaveLength(5);
      for (const { id, logprob, top } of first.logprobs!) {
        expect(top[0]).toEqual({ id, logprob });
        expect(top).toHaveLength(3);
      }
      const trace = JSON.parse(await readFile(at("trace"), "utf8")) as { layers: Record<string, number[][]> };
      for (const positions of Object.values(trace.layers)) expect(positions).toHaveLength(ids.length + 4);
      // What follows is what one longer run gives.
      const second = await go({ ids: [], ...options, state: at("state") });
      const whole = await go({ ids, ...options, generate: 10 });
      expect([...first.generated_ids, ...second.generated_ids]).toEqual(whole.generated_ids);
    }));

  test("sampling repeats with its seed", async () => {
    const sampled = (seed: number) =>
      go({ ids: [1, 2, 3], generate: 12, ignoreEos: true, sampling: { temperature: 1.5, seed } });
    const [a, b, c] = [await sampled(1), await sampled(1), await sampled(2)];
    expect(a.generated_ids).toEqual(b.generated_ids);
    expect(a.seed).toBe("1");
    expect(c.generated_ids).not.toEqual(a.generated_ids);
  });

  test("refuses what cannot be, before it reads weights", async () => {
    const code = (options: Omit<RunOptions, "modelDir">) =>
      go(options).then(
        () => "none",
        (error: { code: string }) => error.code,
      );
    expect(await code({})).toBe("E_USAGE");
    expect(await code({ ids: [] })).toBe("E_USAGE");
    expect(await code({ ids: [1_000_000] })).toBe("E_USAGE");
    expect(await code({ ids: [1], prompt: "two" })).toBe("E_USAGE");
    expect(await code({ ids: [1], stop: ["x"] })).toBe("E_USAGE");
    expect(await code({ ids: [1], generate: -1 })).toBe("E_USAGE");
    expect(await code({ ids: [1], layers: 99 })).toBe("E_USAGE");
    expect(await code({ ids: [1], isa: "mmx" })).toBe("E_USAGE");
    expect(await code({ ids: [1], memory: 20e6 })).toBe("E_MEMORY");
    expect(await code({ ids: [1], trunkDir: "/nowhere" })).toBe("E_DATA");
  });

  test("an aborted run says so and keeps what it has", async () => {
    const controller = new AbortController();
    const result = await go({
      prompt: "The capital of France is",
      generate: 30,
      ignoreEos: true,
      signal: controller.signal,
      onText: () => controller.abort(),
    });
    expect(result.stop_reason).toBe("interrupted");
    expect(result.generated_ids.length).toBeGreaterThan(0);
    expect(result.generated_ids.length).toBeLessThan(30);
  });
});
