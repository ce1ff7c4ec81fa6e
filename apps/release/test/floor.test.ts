import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { NATIVE, PLATFORM, ROOT } from "./support/workspace.ts";

/** https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html: EM_X86_64 and EM_AARCH64 of e_machine. */
const MACHINES: Record<string, number> = { x64: 62, arm64: 183 };
const elsewhere =
  process.platform === "linux" && process.arch === "x64"
    ? ""
    : ` (skipped: this is ${process.platform}-${process.arch}, and releases are made on linux-x64)`;

/** The beginning of an ELF file, and the names of symbol versions as they stand in its table of strings. */
function elf(machine: number, ...versions: string[]): Buffer {
  const header = Buffer.alloc(64);
  header.write("\x7fELF\x02\x01\x01", "latin1");
  header.writeUInt16LE(3, 16); // ET_DYN
  header.writeUInt16LE(machine, 18);
  return Buffer.concat([header, Buffer.from(`\0${versions.join("\0")}\0`)]);
}

// The platform packages in a scratch workspace, with binaries that this test writes.
describe.skipIf(elsewhere)(`what a release checks about the binaries${elsewhere}`, () => {
  let scratch: string;
  beforeEach(() => {
    scratch = mkdtempSync(join(tmpdir(), "k3-floor-"));
    mkdirSync(join(scratch, "scripts"));
    cpSync(join(ROOT, "scripts/platform-binary.mjs"), join(scratch, "scripts/platform-binary.mjs"));
    for (const { folder, dir } of PLATFORM) {
      mkdirSync(join(scratch, "packages", folder), { recursive: true });
      cpSync(join(dir, "package.json"), join(scratch, "packages", folder, "package.json"));
    }
  });
  afterEach(() => rmSync(scratch, { recursive: true }));

  const act = (action: string, cwd = scratch, env = process.env) =>
    spawnSync(process.execPath, [join(scratch, "scripts/platform-binary.mjs"), action], {
      cwd,
      env,
      encoding: "utf8",
    });
  function write(path: string, content: string | Buffer, mode = 0o644): void {
    mkdirSync(join(scratch, path, ".."), { recursive: true });
    writeFileSync(join(scratch, path), content, { mode });
  }
  /** What `pnpm build` makes for this machine. */
  function built(...versions: string[]): void {
    for (const { folder, manifest } of NATIVE)
      write(
        `packages/${folder.replace(/-linux-.*/, "")}/build/Release/${manifest.main}`,
        elf(MACHINES["x64"]!, ...versions),
      );
  }
  /** Stands for the cross compiler: scripts/cross-build.mjs of the engine, and its tools on the PATH. */
  function crossCompiled(binary: Buffer): NodeJS.ProcessEnv {
    write("made.node", binary);
    write(
      "packages/engine/scripts/cross-build.mjs",
      `console.log(${JSON.stringify(join(scratch, "made.node"))})`,
    );
    for (const tool of ["aarch64-linux-gnu-g++", "cmake"]) write(`bin/${tool}`, "#!/bin/sh\n", 0o755);
    return { ...process.env, PATH: `${join(scratch, "bin")}:${process.env["PATH"]}` };
  }
  const old = ["GLIBC_2.17", "GLIBC_2.35", "GLIBCXX_3.4.30", "CXXABI_1.3.9"];

  it("lets pass what runs on the oldest promised system", () => {
    built(...old);
    expect(act("floor", scratch, crossCompiled(elf(MACHINES["arm64"]!, ...old)))).toMatchObject({
      status: 0,
      stderr: "",
    });
  });

  it.each([
    ["GLIBC_2.36", "GLIBC_2.36"],
    ["GLIBC_2.100", "GLIBC_2.100"],
    ["GLIBCXX_3.4.31", "GLIBCXX_3.4.31"],
    ["CXXABI_1.3.14", "CXXABI_1.3.14"],
  ])("refuses a binary for either processor that needs %s", (version) => {
    const arm64 = crossCompiled(elf(MACHINES["arm64"]!, ...old, version));
    built(...old);
    const cross = act("floor", scratch, arm64);
    expect(cross.stderr).toMatch(/^@k3\/engine-linux-arm64-gnu would need (\S+);/);
    expect(cross.stderr).toContain(version);
    built(...old, version);
    const native = act("floor", scratch, crossCompiled(elf(MACHINES["arm64"]!, ...old)));
    expect(native.stderr).toMatch(/^@k3\/engine-linux-x64-gnu would need (\S+);/);
    expect([cross.status, native.status]).toEqual([1, 1]);
  });

  it("refuses when the cross compiler is missing, or fails, or makes something else", () => {
    built(...old);
    const binary = elf(MACHINES["arm64"]!, ...old);
    const without = act("floor", scratch, { ...crossCompiled(binary), PATH: "" });
    expect(without.stderr).toMatch(
      /^@k3\/engine-linux-arm64-gnu: aarch64-linux-gnu-g\+\+ is missing: apt-get install g\+\+-aarch64-linux-gnu/,
    );
    const other = act("floor", scratch, crossCompiled(elf(MACHINES["x64"]!, ...old)));
    expect(other.stderr).toMatch(/^@k3\/engine-linux-arm64-gnu: .* is no binary for AArch64\n$/);
    const empty = act("floor", scratch, crossCompiled(Buffer.alloc(0)));
    expect(empty.stderr).toMatch(/^@k3\/engine-linux-arm64-gnu: .* is no binary for AArch64\n$/);
    const env = crossCompiled(binary);
    write("packages/engine/scripts/cross-build.mjs", 'console.error("a wrong line"); process.exit(1);');
    const failed = act("floor", scratch, env);
    expect(failed.stderr).toMatch(/^@k3\/engine-linux-arm64-gnu: it could not be compiled\na wrong line\n/);
    expect([without.status, other.status, empty.status, failed.status]).toEqual([1, 1, 1, 1]);
  });

  it("refuses to pack or release what has not been built, and leaves nothing behind", () => {
    const env = crossCompiled(elf(MACHINES["arm64"]!, ...old));
    const { folder, manifest } = NATIVE[0]!;
    const dir = join(scratch, "packages", folder);
    for (const { status, stderr } of [act("copy", dir, env), act("floor", scratch, env)]) {
      expect(stderr).toMatch(/ is not there\. Build it first: pnpm build/);
      expect(status).toBe(1);
    }
    built(...old);
    expect(act("copy", dir, env)).toMatchObject({ status: 0, stdout: "", stderr: "" });
    expect(existsSync(join(dir, manifest.main!))).toBe(true);
    expect(act("remove", dir, env).status).toBe(0);
    expect(readdirSync(dir)).toEqual(["package.json"]);
  });

  it("names the platform packages that cannot be packed without the cross compiler", () => {
    write(
      "ask.mjs",
      'import { unpackable } from "./scripts/platform-binary.mjs"; console.log(unpackable());',
    );
    const ask = (env: NodeJS.ProcessEnv) =>
      spawnSync(process.execPath, [join(scratch, "ask.mjs")], { env, encoding: "utf8" }).stdout;
    expect(ask({ PATH: "" }).match(/folder: '.*'/g)).toEqual(
      PLATFORM.filter((each) => !NATIVE.includes(each)).map(({ folder }) => `folder: '${folder}'`),
    );
  });
});
