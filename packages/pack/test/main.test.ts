import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { main } from "../src/main.ts";
import { temporaryDirectory, writeCheckpoint } from "./fixture.ts";

async function run(...argv: string[]) {
  const out = { stdout: "", stderr: "" };
  const exit = await main(argv, {
    stdout: (text) => {
      out.stdout += text;
    },
    stderr: (text) => {
      out.stderr += text;
    },
    live: false,
  });
  return { exit, ...out };
}

describe("k3-pack", () => {
  it("packs, and tells sizes on stdout", async () => {
    const root = await temporaryDirectory();
    await writeCheckpoint(join(root, "model"));
    const dry = await run(join(root, "model"), join(root, "trunk"), "--dry-run");
    expect(dry).toMatchObject({ exit: 0, stdout: expect.stringMatching(/would pack .* they fit/) });
    const first = await run(join(root, "model"), join(root, "trunk"), "--check", "--threads", "2");
    expect(first).toMatchObject({ exit: 0, stdout: expect.stringMatching(/equal to the checkpoint/) });
    const again = await run(join(root, "model"), join(root, "trunk"));
    expect(again.stdout).toMatch(/(\d+) of \1 blocks were there already/);
  });

  it("with --json writes one object a line, the result last", async () => {
    const root = await temporaryDirectory();
    await writeCheckpoint(join(root, "model"));
    const { exit, stdout } = await run(join(root, "model"), join(root, "trunk"), "--json", "--codec", "none");
    expect(exit).toBe(0);
    const lines = stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(new Set(lines.slice(0, -1).map((line) => line.type))).toEqual(new Set(["progress"]));
    expect(lines.at(-1)).toMatchObject({ type: "result", command: "pack", codec: "none", resumed_blocks: 0 });
  });

  it("refuses what it does not know with 2, and missing data with 3", async () => {
    expect(await run()).toMatchObject({ exit: 2, stderr: expect.stringMatching(/give a model directory/) });
    expect((await run("a", "b", "--frobnicate")).exit).toBe(2);
    expect((await run("a", "b", "--codec", "zip")).exit).toBe(2);
    expect((await run("a", "b", "--threads", "many")).exit).toBe(2);
    const { exit, stdout } = await run("/nonexistent/model", "/nonexistent/trunk", "--json");
    expect(exit).toBe(3);
    expect(JSON.parse(stdout)).toMatchObject({ type: "error", code: "E_DATA", exit: 3 });
    expect(await run("--help")).toMatchObject({
      exit: 0,
      stdout: expect.stringMatching(/^k3-pack MODEL_DIR/),
    });
  });

  it("ends without a word when nobody reads its output any more", async () => {
    const root = await temporaryDirectory();
    await writeCheckpoint(join(root, "model"), { config: { vocab_size: 400_000 } });
    const bin = join(import.meta.dirname, "../bin/k3-pack.js");
    const args = [bin, join(root, "model"), join(root, "trunk"), "--json"];
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    child.stderr.on("data", (data) => (said += data));
    child.stdout.once("data", () => child.stdout.destroy());
    await once(child, "close");
    expect([child.exitCode, said]).toEqual([0, ""]);
  });

  it.each(["SIGINT", "SIGHUP"] as const)(
    "stops at %s with 130, and the same command continues",
    async (signal) => {
      const root = await temporaryDirectory();
      await writeCheckpoint(join(root, "model"), { config: { vocab_size: 2_000_000 } }); // 256 MB of lm_head
      const bin = join(import.meta.dirname, "../bin/k3-pack.js");
      const args = [bin, join(root, "model"), join(root, "trunk"), "--json", "--threads", "1"];
      let stopped = false;
      for (let attempt = 0; attempt < 10 && !stopped; attempt++) {
        await rm(join(root, "trunk"), { recursive: true, force: true });
        const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
        let out = "";
        child.stdout.on("data", (data) => {
          out += data;
          if (!child.killed && out.includes('"phase":"packing')) child.kill(signal);
        });
        await once(child, "close");
        stopped = child.exitCode === 130;
        if (!stopped) continue; // it was faster
        const last = JSON.parse(out.trimEnd().split("\n").at(-1)!);
        expect(last).toMatchObject({ type: "error", code: "E_INTERRUPTED", exit: 130 });
      }
      expect(stopped).toBe(true);
      const { exit, stdout } = await run(join(root, "model"), join(root, "trunk"), "--json", "--check");
      expect(exit).toBe(0);
      expect(JSON.parse(stdout.trimEnd().split("\n").at(-1)!)).toMatchObject({
        type: "result",
        checked: true,
      });
    },
  );

  it("runs as a program", async () => {
    const root = await temporaryDirectory();
    await writeCheckpoint(join(root, "model"));
    const bin = join(import.meta.dirname, "../bin/k3-pack.js");
    const out = execFileSync(process.execPath, [bin, join(root, "model"), join(root, "trunk")], {
      encoding: "utf8",
      stdio: ["ignore", "pipe", "ignore"],
    });
    expect(out).toMatch(/kB ->|MB ->/);
    expect(spawnSync(process.execPath, [bin, "only-one"]).status).toBe(2);
  });
});
