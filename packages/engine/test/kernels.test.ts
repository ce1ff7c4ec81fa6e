// The kernels' own test program (native/kernels/test), built here: every table against the scalar one bit by bit, the
// scalar one against double precision, MXFP4 against values written out by hand.
import { execFileSync } from "node:child_process";
import { resolve } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { buildKernels } from "../bench/build-kernels.mjs";

const nightly = process.env["K3_NIGHTLY"] === "1";
let build = "";

beforeAll(() => {
  build = buildKernels();
}, 600_000);

function run(...args: string[]): string {
  return execFileSync(resolve(build, "kernels_test"), args, { encoding: "utf8", maxBuffer: 1 << 26 });
}

describe("kernels", () => {
  it("give the bits of the scalar table on every instruction set this CPU has, near the values of double", () => {
    const output = run("--rounds", nightly ? "20000" : "400", ...(nightly ? ["--thorough"] : []));
    expect(output).toMatch(/\n[1-9]\d+ passed, 0 failed\n$/);
    for (const table of run("tables").trim().split("\n")) expect(output).toContain(`${table}: done`);
  }, 3_600_000);

  it("say the seed, and take another", () => {
    const seed = 1 + Math.floor(Math.random() * 1e9);
    const output = run("--rounds", "50", "--seed", String(seed));
    expect(output, `kernels_test --rounds 50 --seed ${seed}`).toMatch(/ passed, 0 failed\n$/);
    expect(output).toContain(`seed ${seed}`);
  });

  it.skipIf(!nightly)(
    "are clean under the address and undefined-behaviour sanitizers (only with K3_NIGHTLY=1)",
    () => {
      const program = resolve(buildKernels("address,undefined"), "kernels_test");
      const output = execFileSync(program, ["--rounds", "1000", "--seed", "2"], { encoding: "utf8" });
      expect(output).toMatch(/ passed, 0 failed\n$/);
    },
    3_600_000,
  );

  it("refuse an argument they do not know", () => {
    expect(() => execFileSync(resolve(build, "kernels_test"), ["--no-such"], { stdio: "pipe" })).toThrow(
      /unknown argument/,
    );
  });

  // The linker keeps one copy of a weak function, whichever file it came from: compiled for AVX-512, it would crash
  // a machine without. And nothing but the AVX-512 file may use its registers.
  it("keep each instruction set in its own file", () => {
    const library = resolve(build, "libk3_kernels.a");
    const symbols = execFileSync("nm", ["-C", library], { encoding: "utf8" });
    expect(symbols).toContain("k3::scalar_kernels()");
    expect(symbols.split("\n").filter((line) => / [WVu] /.test(line))).toEqual([]);
    const code = execFileSync("objdump", ["-d", "--no-show-raw-insn", library], {
      encoding: "utf8",
      maxBuffer: 1 << 28,
    });
    const users = { ymm: new Set<string>(), zmm: new Set<string>() };
    let file = "";
    for (const line of code.split("\n")) {
      file = /^(\S+\.o):/.exec(line)?.[1] ?? file;
      if (line.includes("%ymm")) users.ymm.add(file);
      if (line.includes("%zmm")) users.zmm.add(file);
    }
    if (process.arch !== "x64") return;
    expect([...users.zmm]).toEqual(["avx512.cc.o"]);
    expect([...users.ymm].sort()).toEqual(["avx2.cc.o", "avx512.cc.o"]);
  });
});
