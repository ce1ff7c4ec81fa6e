import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import { failure, KIB, MIB, run, sampleFiles, serve, shardName, temporary } from "./support.ts";

describe("what is downloaded, and in which order", () => {
  it("first patterns come before all else, then small files, then shards by name", async () => {
    const files = sampleFiles(600 * KIB, 3);
    const hub = await serve(files);
    const dir = await temporary();
    await run(hub, dir, { concurrency: 1, first: ["model-00002*"] });
    const order = [...new Set(hub.requests.filter((r) => r.method === "GET" && r.path).map((r) => r.path!))];
    expect(order[0]).toBe(shardName(1, 3));
    expect(order.slice(-2)).toEqual([shardName(0, 3), shardName(2, 3)]);
    expect(order.slice(1, -2)).toContain("config.json");
    const { messages } = await run(hub, await temporary(), { first: ["config*", "modle-00001*"] });
    expect(messages.filter((m) => m.includes("come first"))).toEqual([
      'no file matches "modle-00001*", which was to come first',
    ]);
  });

  it("include and exclude choose files; the manifest still lists all of them", async () => {
    const files = sampleFiles(100 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir, { include: ["*.json", "model-*"], exclude: ["*-00002-*"] });
    expect(result.files).toBe(3);
    const snapshot = JSON.parse(await readFile(join(dir, ".cache/k3/snapshot.json"), "utf8"));
    expect(snapshot.files).toHaveLength(files.length);
    expect(snapshot.selected).toEqual(["config.json", shardName(0, 2), "tokenizer_config.json"]);
    expect(await failure(hub, await temporary(), { include: ["nothing*"] })).toMatchObject({ exit: 2 });
  });

  it("at most two shards are open, and the last one gets all connections", async () => {
    // The last one is so large that it is alone for a second, on any machine.
    const last = syntheticFile("model-last.safetensors", 9 * MIB, { seed: 9 });
    const hub = await serve([...sampleFiles(1 * MIB, 3), last]);
    const dir = await temporary();
    hub.setFaults({ bps: 8 * MIB });
    const { events } = await run(hub, dir, { concurrency: 6 });
    const details = events.flatMap((e) => (e.type === "progress" && e.detail?.["file"] ? [e.detail] : []));
    const shards = details.filter((d) => String(d["file"]).startsWith("model-"));
    expect(Math.max(...shards.map((d) => Number(d["files_open"])))).toBeLessThanOrEqual(2);
    const alone = shards.filter((d) => d["files_left"] === 1);
    expect(Math.max(...alone.map((d) => Number(d["connections"])))).toBeGreaterThan(2);
  });
});
