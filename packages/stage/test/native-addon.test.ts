import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterEach, beforeEach, expect, test } from "vitest";
import { loadNativeAddon, StageError } from "../src/index.ts";

// Node loads whatever a name resolves to: a module in JavaScript stands for the binary of a platform package, and a file
// that is no ELF file for a build that this machine cannot load.
const platform = `@k3/thing-${process.platform}-${process.arch}${process.platform === "linux" ? "-gnu" : ""}`;
let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "k3-addon-"));
  write("package.json", "{}");
});
afterEach(() => {
  delete process.env["K3_THING_ADDON"];
  delete process.env["K3_SANITIZE"];
  rmSync(dir, { recursive: true });
});

function write(path: string, text: string): string {
  const file = join(dir, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  return file;
}

function load() {
  return loadNativeAddon({
    manifest: pathToFileURL(join(dir, "package.json")),
    name: "@k3/thing",
    file: "thing.node",
    buildCommand: "npx k3-thing-build",
    override: "K3_THING_ADDON",
  });
}

function refusal(): StageError {
  try {
    load();
  } catch (error) {
    if (error instanceof StageError) return error;
    throw error;
  }
  throw new Error("it loaded");
}

test("with neither a build nor a platform package the error lists both and names the command", () => {
  const error = refusal();
  expect(error).toMatchObject({ code: "E_CONFIG", exit: 2 });
  expect(error.hint).toContain("`npx k3-thing-build`");
  expect(error.hint).toContain(`\`node ${join(dir, "scripts/build-native.mjs")}\``);
  expect(error.details).toEqual({
    tried: [`${join(dir, "build/Release/thing.node")}: not there`, `${platform}: not installed`],
  });
});

test("a build that does not load is passed over for the platform package", () => {
  write("build/Release/thing.node", "no ELF file at all");
  expect(refusal().message).toMatch(/build\/Release\/thing\.node: .*(ELF|file too short)/);
  const file = write(`node_modules/${platform}/index.js`, "module.exports = { answer: 42 };");
  expect(load()).toEqual({ addon: { answer: 42 }, path: file });
});

test("an override is the only file that counts", () => {
  write(`node_modules/${platform}/index.js`, "module.exports = { answer: 42 };");
  process.env["K3_THING_ADDON"] = join(dir, "elsewhere.js");
  expect(refusal().details).toEqual({ tried: [`${join(dir, "elsewhere.js")}: not there`] });
  write("elsewhere.js", "module.exports = { answer: 43 };");
  expect(load().addon).toEqual({ answer: 43 });
});

test("under sanitizers only the build under these sanitizers counts", () => {
  write(`node_modules/${platform}/index.js`, "module.exports = { answer: 42 };");
  process.env["K3_SANITIZE"] = "address,undefined";
  expect(refusal().details).toEqual({
    tried: [`${join(dir, "build-address-undefined/Release/thing.node")}: not there`],
  });
});
