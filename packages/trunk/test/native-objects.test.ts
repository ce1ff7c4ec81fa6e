// What is compiled for one instruction set must not leak into code that runs on every machine.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";

const build = join(import.meta.dirname, "../build/CMakeFiles/k3_codec.dir/native");
const tool = (name: string, ...args: string[]) =>
  execFileSync(name, args, { encoding: "utf8", maxBuffer: 1 << 28 });
const hasTools = (() => {
  try {
    tool("objdump", "--version");
    tool("nm", "--version");
    return existsSync(build) && process.arch === "x64";
  } catch {
    return false;
  }
})();

describe.skipIf(!hasTools)(
  hasTools ? "compiled kernels" : "compiled kernels (skipped: no binutils or no x86 build)",
  () => {
    const objects = hasTools ? readdirSync(build).filter((file) => file.endsWith(".o")) : [];

    it("use wide registers only in their own files", () => {
      expect(objects).toContain("decode_avx512.cc.o");
      for (const file of objects) {
        const code = tool("objdump", "-d", "--no-show-raw-insn", join(build, file));
        expect(/%zmm/.test(code), `zmm in ${file}`).toBe(/avx512|vpclmul/.test(file));
        if (!/avx2|avx512|vpclmul/.test(file)) expect(/%ymm/.test(code), `ymm in ${file}`).toBe(false);
      }
    });

    it("define no symbols that a linker could prefer over the portable ones", () => {
      for (const file of objects.filter((name) => /avx|pclmul/.test(name))) {
        const weak = tool("nm", "--defined-only", join(build, file))
          .split("\n")
          .filter((line) => / [WVu] /.test(line));
        expect(weak, file).toEqual([]);
      }
    });
  },
);
