import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import {
  leading,
  python,
  ReferenceModel,
  type Routing,
  sharedDir,
  title,
  withTempDir,
} from "../src/index.ts";

const scripts = join(dirname(fileURLToPath(import.meta.url)), "../../../tools/reference");
const shared = sharedDir();
const numpy = python();

interface OracleCase {
  prompt_ids: number[];
  generated_ids: number[];
  smallest_margin: number;
  largest_logit: number;
  top: [id: number, logit: number][];
}
interface Oracle {
  checkpoints: {
    name: string;
    make: { seed: number; shards: number; set: Record<string, number> };
    cases: OracleCase[];
  }[];
}

interface Anchor {
  ids: number[];
  last_logits: number[];
  routing: Record<string, number[]>;
  argmax: number;
}

function makeCheckpoint(dir: string, { seed, shards, set }: Oracle["checkpoints"][number]["make"]): void {
  const settings = Object.entries(set).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
  const script = join(scripts, "make_checkpoint.py");
  execFileSync(numpy.path!, [script, dir, "--seed", String(seed), "--shards", String(shards), ...settings]);
}

describe.skipIf(numpy.skip)(title("against NumPy", numpy), () => {
  test("logits of a random checkpoint are those of k3_reference.py, position by position", async () => {
    await withTempDir(async (dir) => {
      makeCheckpoint(dir, { seed: 12, shards: 3, set: { num_hidden_layers: 9, vocab_size: 600 } });
      const ids = [5, 599, 17, 300, 17, 17, 401];
      const code = [
        "import sys, json; sys.path.insert(0, sys.argv[1])",
        "from pathlib import Path; import k3_reference",
        "print(json.dumps(k3_reference.Model(Path(sys.argv[2])).logits(json.loads(sys.argv[3])).tolist()))",
      ].join("\n");
      const args = ["-c", code, scripts, dir, JSON.stringify(ids)];
      const expected = JSON.parse(
        execFileSync(numpy.path!, args, { maxBuffer: 2 ** 26 }).toString(),
      ) as number[][];
      const model = await ReferenceModel.open(dir);
      const logits = model.logits(ids);
      let worst = 0;
      expected.forEach((row, t) => {
        row.forEach((value, i) => {
          worst = Math.max(worst, Math.abs(value - logits[t]![i]!));
        });
      });
      expect(worst).toBeLessThan(1e-11);
      // The same positions one at a time, through the state that a sequence carries.
      const state = model.newState();
      const stepped = ids.map((id) => model.logits([id], state)[0]!);
      expect(
        stepped.every((row, t) => row.every((value, i) => Math.abs(value - logits[t]![i]!) < 1e-11)),
      ).toBe(true);
    });
  });
});

describe.skipIf(numpy.skip ?? shared.skip)(title("against the recordings", numpy, shared), () => {
  test("greedy continuations and leading logits of both oracle checkpoints", async () => {
    const oracle = JSON.parse(readFileSync(join(shared.path!, "data/oracle.json"), "utf8")) as Oracle;
    for (const { make, cases } of oracle.checkpoints) {
      await withTempDir(async (dir) => {
        makeCheckpoint(dir, make);
        const model = await ReferenceModel.open(dir);
        for (const one of cases) {
          const last = model.logits(one.prompt_ids).at(-1)!;
          for (const [id, logit] of one.top) expect(last[id]).toBeCloseTo(logit, 9);
          const { ids, smallestMargin } = model.generate(one.prompt_ids, one.generated_ids.length);
          expect(ids).toEqual(one.generated_ids);
          expect(smallestMargin).toBeCloseTo(one.smallest_margin, 9);
        }
      });
    }
  });

  test("logits recorded from the first-party code for the 93-layer miniature", async () => {
    await withTempDir(async (dir) => {
      execFileSync(numpy.path!, [join(shared.path!, "reference/make_anchor.py"), dir]);
      const anchor = JSON.parse(readFileSync(join(shared.path!, "data/anchor-1.json"), "utf8")) as Anchor;
      const routed: Record<string, number[]> = {};
      const onRoute = (layer: number, { experts }: Routing) => {
        routed[layer] = experts.toSorted((a, b) => a - b);
      };
      const model = await ReferenceModel.open(dir, { onRoute });
      const last = model.logits(anchor.ids).at(-1)!;
      const largest = Math.max(...anchor.last_logits.map(Math.abs));
      const worst = Math.max(...anchor.last_logits.map((value, i) => Math.abs(value - last[i]!)));
      expect(worst / largest).toBeLessThan(1e-4);
      expect(leading(last).best).toBe(anchor.argmax);
      // The last position's experts.
      for (const [layer, experts] of Object.entries(anchor.routing)) {
        expect(routed[layer]).toEqual(experts.toSorted((a, b) => a - b));
      }
    });
  });
});
