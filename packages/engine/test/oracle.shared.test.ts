import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { python, sharedDir, title, withTempDir } from "@k3/testkit";
import { describe, expect, test } from "vitest";
import { Model, type PassRecord } from "../src/index.ts";
import { continueWith, makeCheckpoint, relativeError } from "./reference.ts";

const shared = sharedDir();
const numpy = python();

interface Oracle {
  checkpoints: {
    name: string;
    make: { seed: number; shards: number; set: Record<string, number> };
    cases: {
      prompt_ids: number[];
      generated_ids: number[];
      largest_logit: number;
      top: [number, number][];
    }[];
  }[];
}

describe.skipIf(shared.skip || numpy.skip)(title("oracle.json", shared, numpy), () => {
  test.each(["default", "wide"])("%s: the reference's tokens and leading logits", async (name) => {
    const oracle = JSON.parse(await readFile(join(shared.path!, "data/oracle.json"), "utf8")) as Oracle;
    const { make, cases } = oracle.checkpoints.find((checkpoint) => checkpoint.name === name)!;
    await withTempDir(async (dir) => {
      await makeCheckpoint(numpy.path!, dir, make);
      for (const { prompt_ids, generated_ids, largest_logit, top } of cases) {
        const { generated, logits } = await continueWith({ modelDir: dir }, prompt_ids, generated_ids.length);
        expect(generated).toEqual(generated_ids);
        for (const [id, logit] of top)
          expect(Math.abs(logits[id]! - logit) / largest_logit).toBeLessThan(1e-4);
      }
    });
  });
});

describe.skipIf(shared.skip || numpy.skip)(title("the first-party recording anchor-1", shared, numpy), () => {
  test("logits within 1e-4, and the experts that were chosen", async () => {
    const anchor = JSON.parse(await readFile(join(shared.path!, "data/anchor-1.json"), "utf8")) as {
      ids: number[];
      last_logits: number[];
      routing: Record<string, number[]>;
      salt: string;
    };
    await withTempDir(async (dir) => {
      const script = join(shared.path!, "reference/make_anchor.py");
      await promisify(execFile)(numpy.path!, [script, dir, "--salt", anchor.salt]);
      const model = await Model.open({ modelDir: dir, memory: 8e9, chunk: 4 });
      const session = model.session();
      const records: PassRecord[] = [];
      await session.prefill(anchor.ids, { trace: true, onPass: (record) => records.push(record) });
      expect(relativeError(session.logits!, anchor.last_logits)).toBeLessThan(1e-4);
      const { experts, stats } = records.at(-1)!;
      const top = model.config.expertsPerToken;
      for (const [layer, expected] of Object.entries(anchor.routing)) {
        const row = Number(layer) - 1; // layer 0 is dense
        const at = (row * stats.tokens + stats.tokens - 1) * top;
        expect([...experts!.subarray(at, at + top)].sort((a, b) => a - b)).toEqual(
          [...expected].sort((a, b) => a - b),
        );
      }
      await model.close();
    });
  });
});
