import { mkdtemp, open, readFile, rm, stat, truncate } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeMiniature, serveDirectory } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { k3 } from "./harness.ts";

let dir: string;
let model: string;
let hub: Awaited<ReturnType<typeof serveDirectory>>;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "k3-repair-"));
  model = join(dir, "model");
  await makeMiniature(join(dir, "source"));
  hub = await serveDirectory(join(dir, "source"));
}, 300_000);
afterAll(async () => {
  await hub.close();
  await rm(dir, { recursive: true, force: true });
});

const SHARD = "model-00004-of-000012.safetensors";
const fetchArgs = () => ["fetch", hub.repo, "--dir", model, "--endpoint", hub.endpoint, "--json"];

async function flipByte(path: string, at: number): Promise<void> {
  const handle = await open(path, "r+");
  try {
    const byte = Buffer.alloc(1);
    await handle.read(byte, 0, 1, at);
    byte[0] = byte[0]! ^ 0x10;
    await handle.write(byte, 0, 1, at);
  } finally {
    await handle.close();
  }
}

describe("fetch, verify and repair, as a user chains them", { timeout: 120_000 }, () => {
  it("fetches, and verifies at once because fetch hashed what came", async () => {
    const fetched = await k3(fetchArgs());
    expect({ code: fetched.code, error: fetched.code ? fetched.stdout : "" }).toEqual({ code: 0, error: "" });
    expect(fetched.result()).toMatchObject({
      type: "result",
      command: "fetch",
      repo: hub.repo,
      revision: hub.commit,
      files: 19,
      verified: true,
      resumed_bytes: 0,
    });
    const verified = await k3(["verify", model, "--json"]);
    expect(verified.result()).toMatchObject({
      type: "result",
      command: "verify",
      ok: true,
      level: "hashes",
      checked: 19,
      faults: [],
    });
    expect(verified.code).toBe(0);
  });

  it("fetches nothing again", async () => {
    const again = await k3(fetchArgs());
    expect(again.result()).toMatchObject({ downloaded_bytes: 0, verified: true });
  });

  it("names the damaged file, exits with 3, and mends just that chunk", async () => {
    const path = join(model, SHARD);
    await flipByte(path, (await stat(path)).size - 100);
    const found = await k3(["verify", model, "--since-receipt", "--json"]);
    expect(found.code).toBe(3);
    expect(found.result()).toMatchObject({ ok: false, faults: [{ path: SHARD }] });
    const human = await k3(["verify", model]);
    expect(human.stdout).toContain(SHARD);
    hub.clearLog();
    const repaired = await k3([...fetchArgs(), "--repair"]);
    expect({ code: repaired.code, error: repaired.code ? repaired.stdout : "" }).toEqual({
      code: 0,
      error: "",
    });
    const touched = new Set(
      hub.requests.filter(({ where }) => where === "cdn").map(({ url }) => url.split("?")[0]),
    );
    expect(touched.size).toBe(1);
    expect((await readFile(path)).equals(await readFile(join(dir, "source", SHARD)))).toBe(true);
    expect((await k3(["verify", model, "--json"])).result()).toMatchObject({ ok: true, faults: [] });
  });

  it("fetches a file again that lost its end, and no other", async () => {
    const path = join(model, SHARD);
    await truncate(path, 1000);
    const sizes = await k3(["verify", model, "--level", "sizes", "--json"]);
    expect(sizes.result()).toMatchObject({
      ok: false,
      faults: [{ path: SHARD, kind: "size", found: expect.stringContaining("1000") }],
    });
    const mended = await k3(fetchArgs());
    expect(mended.result()).toMatchObject({
      downloaded_bytes: (await readFile(path)).length,
      verified: true,
    });
    expect((await readFile(path)).equals(await readFile(join(dir, "source", SHARD)))).toBe(true);
  });

  it("calls a part of the repository ok but not complete", async () => {
    const part = join(dir, "part");
    const fetched = await k3([
      "fetch",
      hub.repo,
      "--dir",
      part,
      "--endpoint",
      hub.endpoint,
      "--include",
      "*.json",
      "--json",
    ]);
    expect(fetched.result()).toMatchObject({ verified: true });
    expect((await k3(["verify", part, "--json"])).result()).toMatchObject({ ok: true, complete: false });
    expect((await k3(["verify", part])).stdout).toContain("not complete");
    expect((await k3(["verify", model, "--json"])).result()).toMatchObject({ ok: true, complete: true });
  });

  it("says with exit code 6 that the Hub has no such repository, in well under a second of retries", async () => {
    const { code, result } = await k3([
      "fetch",
      "no/such",
      "--dir",
      join(dir, "no"),
      "--endpoint",
      hub.endpoint,
      "--json",
    ]);
    expect([code, result()["code"]]).toEqual([6, "E_HUB"]);
  });

  it("cleans up what an unfinished download left, when told yes", async () => {
    const cleaned = await k3(["clean", model, "--json"]);
    expect(cleaned.result()).toMatchObject({ type: "result", command: "clean", removed: false });
    expect((await k3(["clean", join(dir, "absent")])).code).toBe(2);
  });
});
