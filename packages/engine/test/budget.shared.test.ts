import { execFile } from "node:child_process";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { python, title, withTempDir } from "@k3/testkit";
import { expect, test } from "vitest";

const execute = promisify(execFile);
const numpy = python();

/** Three layers of the full-size model, as sparse files: real widths, real blocks, real experts. */
test.skipIf(numpy.skip)(title("peak resident memory keeps to the budget, from the least upward", numpy), () =>
  withTempDir(async (dir) => {
    const script = resolve(import.meta.dirname, "../../../tools/reference/make_twin.py");
    await execute(numpy.path!, [script, dir, "--layers", "3", "--experts", "64"]);
    const child = async (memory: number, options: Record<string, unknown> = {}) => {
      const request = {
        modelDir: dir,
        memory,
        ids: [1, 2, 3, 4, 5, 6, 7],
        generate: 3,
        peak: true,
        ...options,
      };
      const { stdout } = await execute(process.execPath, [
        join(import.meta.dirname, "faults/child.mjs"),
        JSON.stringify(request),
      ]);
      return JSON.parse(stdout.trim().split("\n").at(-1)!) as {
        generated?: number[];
        peak?: number;
        code?: string;
        message: string;
        details?: { needed: number };
      };
    };
    const refused = await child(100e6);
    expect(refused.code).toBe("E_MEMORY");
    const least = refused.details!.needed * 1.02;
    let expected: number[] | undefined;
    for (const memory of [least, least + 1e9, least + 3e9, 7e9]) {
      for (const pace of ["disk", "memory"]) {
        const { generated, peak } = await child(memory, { tuning: { pace } });
        expected ??= generated!;
        expect(generated).toEqual(expected);
        expect(peak! - memory).toBeLessThan(Math.max(100e6, 0.03 * memory));
      }
    }
  }),
);
