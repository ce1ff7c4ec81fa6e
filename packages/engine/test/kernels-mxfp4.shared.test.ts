// MXFP4 decoding against rows of the released checkpoint.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { buildKernels } from "../bench/build-kernels.mjs";

const shared = process.env["K3_SHARED"];

interface ReleasedRows {
  rows: number;
  columns: number;
  packed: string;
  scales: string;
  decoded_sha256: string;
  first_values: number[];
}

describe.skipIf(!shared)(`MXFP4 rows as released${shared ? "" : " (skipped: K3_SHARED is not set)"}`, () => {
  let directory = "";
  let program = "";
  beforeAll(() => {
    directory = mkdtempSync(join(tmpdir(), "k3-kernels-"));
    program = resolve(buildKernels(), "kernels_test");
  }, 600_000);
  afterAll(() => rmSync(directory, { recursive: true, force: true }));

  it("decode to the recorded values with every table", () => {
    const path = join(shared ?? "", "data/released/mxfp4-rows.json");
    const released = JSON.parse(readFileSync(path, "utf8")) as ReleasedRows;
    const file = (name: string): string => join(directory, name);
    writeFileSync(file("packed"), Buffer.from(released.packed, "base64"));
    writeFileSync(file("scales"), Buffer.from(released.scales, "base64"));
    const tables = execFileSync(program, ["tables"], { encoding: "utf8" }).trim().split("\n");
    expect(tables).toContain("scalar");
    for (const table of tables) {
      const shape = [String(released.rows), String(released.columns)];
      execFileSync(program, ["decode", table, ...shape, file("packed"), file("scales"), file("out")]);
      const decoded = readFileSync(file("out"));
      const values = new Float32Array(decoded.buffer, decoded.byteOffset, decoded.byteLength / 4);
      expect(values.length).toBe(released.rows * released.columns);
      // The recording writes negative zeros as zeros.
      for (let i = 0; i < values.length; i++) if (values[i] === 0) values[i] = 0;
      expect(Array.from(values.subarray(0, released.first_values.length), (v) => v + 0)).toEqual(
        released.first_values.map((v) => v + 0),
      );
      const bytes = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
      expect(createHash("sha256").update(bytes).digest("hex"), table).toBe(released.decoded_sha256);
    }
  });
});
