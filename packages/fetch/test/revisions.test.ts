import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  downloading,
  expectComplete,
  failure,
  KIB,
  leftovers,
  MIB,
  REPO,
  run,
  said,
  sampleFiles,
  sentFor,
  serve,
  shardName,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

describe("revisions of one directory", () => {
  it("another commit is refused without switchRevision, and taken with it; unchanged files stay", async () => {
    const files = sampleFiles(1 * MIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    const changed = [...files.slice(0, -1), syntheticFile(shardName(1, 2), 1 * MIB + 5, { seed: 77 })];
    const sha = await hub.repository(REPO).commit(changed);
    const refused = await failure(hub, dir);
    expect(refused).toMatchObject({ code: "E_USAGE", exit: 2 });
    expect(refused.message).toContain(result.revision);
    expect(refused.message).toContain(sha);
    await expectComplete(dir, files);
    hub.clearLog();
    const moved = await run(hub, dir, { switchRevision: true });
    await expect(moved.result.revision).toBe(sha);
    expect(sentFor(hub, shardName(0, 2))).toBe(0);
    await expectComplete(dir, changed);
    // What stayed is known under the new commit, too: nothing is hashed again, and hf finds its own record.
    const again = await run(hub, dir);
    expect(again.messages.filter((text) => text.includes("hashing"))).toEqual([]);
    const metadata = join(dir, ".cache/huggingface/download", `${shardName(0, 2)}.metadata`);
    expect((await readFile(metadata, "utf8")).split("\n")[0]).toBe(sha);
  });

  it("a partial file of another commit is never spliced with the new one (T-13)", async () => {
    const files = [syntheticFile("model.safetensors", 4 * MIB, { seed: 1 })];
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ bps: 4 * MIB });
    const first = spawnRun(testOptions(hub, dir, { concurrency: 2 }));
    await first.event(downloading(1 * MIB));
    first.child.kill("SIGKILL");
    await first.ended;
    hub.clearFaults();
    const changed = [syntheticFile("model.safetensors", 4 * MIB, { seed: 2 })];
    await hub.repository(REPO).commit(changed);
    const { result } = await run(hub, dir, { switchRevision: true });
    expect(result.resumed_bytes).toBe(0);
    await expectComplete(dir, changed);
    expect(await leftovers(dir)).toEqual([]);
  });

  it("a directory of another repository is refused", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files, {
      repositories: [
        { name: REPO, files },
        { name: "ns/other", files },
      ],
    });
    const dir = await temporary();
    await run(hub, dir);
    expect(await failure(hub, dir, { repo: "ns/other" })).toMatchObject({ code: "E_USAGE" });
  });

  it("says in JSON what a child process says in its result", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const { ended } = spawnRun(testOptions(hub, dir));
    const { code, output } = await ended;
    expect(code).toBe(0);
    expect(Object.keys(said(output).result!)).toEqual([
      "repo",
      "revision",
      "dir",
      "files",
      "bytes",
      "downloaded_bytes",
      "resumed_bytes",
      "seconds",
      "verified",
    ]);
  });
});
