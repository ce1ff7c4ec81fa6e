import { execFileSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { makeMiniature, python, title, withTempDir } from "../src/index.ts";

const script = join(dirname(fileURLToPath(import.meta.url)), "../../../tools/reference/k3_reference.py");
const numpy = python();

describe.skipIf(numpy.skip)(title("the miniature read by NumPy", numpy), () => {
  test("k3_reference.py continues sentences and a tool call as learned", async () => {
    await withTempDir(async (dir) => {
      const { samples } = await makeMiniature(dir);
      for (const name of ["sentence 0", "sentence 8", "tools turn 1"]) {
        const { promptIds, completionIds } = samples.find((sample) => sample.name === name)!;
        const args = [script, dir, "--ids", promptIds.join(), "--generate", String(completionIds.length)];
        const { generated_ids } = JSON.parse(execFileSync(numpy.path!, args).toString()) as {
          generated_ids: number[];
        };
        expect({ name, generated_ids }).toEqual({ name, generated_ids: completionIds });
      }
    });
  });
});
