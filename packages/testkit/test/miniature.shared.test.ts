import { execFileSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { makeMiniature, python, title, withTempDir } from "../src/index.ts";

const scripts = join(dirname(fileURLToPath(import.meta.url)), "../../../tools/reference");
const numpy = python();

/** The greedy choice of k3_reference.py after every position of one sequence, in one pass. */
const CHOICES = `
import sys, json; sys.path.insert(0, sys.argv[1])
from pathlib import Path; import k3_reference
model = k3_reference.Model(Path(sys.argv[2]))
print(json.dumps([model.logits(ids).argmax(-1).tolist() for ids in json.loads(sys.argv[3])]))`;

describe.skipIf(numpy.skip)(title("the miniature read by NumPy", numpy), () => {
  test("k3_reference.py continues sentences and a conversation as learned", async () => {
    await withTempDir(async (dir) => {
      const samples = (await makeMiniature(dir)).samples.filter(({ name }) =>
        /^(sentence|direct)/.test(name),
      );
      const sequences = samples.map(({ promptIds, completionIds }) => [
        ...promptIds,
        ...completionIds.slice(0, -1),
      ]);
      const args = ["-c", CHOICES, scripts, dir, JSON.stringify(sequences)];
      const choices = JSON.parse(execFileSync(numpy.path!, args).toString()) as number[][];
      samples.forEach(({ name, promptIds, completionIds }, i) => {
        const ids = choices[i]!.slice(promptIds.length - 1);
        expect({ name, ids }).toEqual({ name, ids: completionIds });
      });
    });
  });
});
