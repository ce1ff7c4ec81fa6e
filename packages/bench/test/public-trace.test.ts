import { execFileSync } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { withTempDir } from "@k3/testkit";
import { expect, it } from "vitest";
import { cacheSim } from "../src/index.ts";

const SCRIPT = join(import.meta.dirname, "../bench/public-trace.mjs");

it("the last of the growing passes of a public trace becomes one of ours, token by token", () =>
  withTempDir(async (dir) => {
    // Two layers, two experts a token: a pass over two tokens, then one over three.
    const pairs = [
      ...[1, 7, 1, 8, 1, 9, 1, 10, 2, 20, 2, 21, 2, 22, 2, 23],
      ...[1, 7, 1, 8, 1, 9, 1, 10, 1, 7, 1, 11, 2, 20, 2, 21, 2, 22, 2, 23, 2, 24, 2, 25],
    ];
    await writeFile(join(dir, "expert_trace.bin"), Buffer.from(Int32Array.from(pairs).buffer));
    const text = execFileSync(process.execPath, [SCRIPT, join(dir, "expert_trace.bin"), "--top-k", "2"], {
      encoding: "utf8",
    });
    await writeFile(join(dir, "trace.json"), text);
    expect(JSON.parse(text).layers).toEqual({
      1: [
        [7, 8],
        [9, 10],
        [7, 11],
      ],
      2: [
        [20, 21],
        [22, 23],
        [24, 25],
      ],
    });
    // Three tokens that ask for four experts each; of all only expert 7 of layer 1 comes again.
    const { tokens, rows } = await cacheSim(join(dir, "trace.json"), { sizes: [1e9], expertBytes: 1 });
    expect(tokens).toBe(3);
    expect(rows.map(({ avoided_share }) => avoided_share)).toEqual([1 / 12, 1 / 12, 1 / 12]);
  }));
