import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { StageEvent } from "@k3/stage";
import { expect, test } from "vitest";
import { serveDirectory, withTempDir } from "../src/index.ts";
import { ask, located } from "./client.ts";

test("a directory is served as one repository, hidden and half-made files left out", async () => {
  await withTempDir(async (dir) => {
    await mkdir(join(dir, "sub"));
    await mkdir(join(dir, ".cache/k3"), { recursive: true });
    await writeFile(join(dir, "config.json"), "{}");
    await writeFile(join(dir, "sub/model.safetensors"), Buffer.alloc(1000, 7));
    await writeFile(join(dir, "big.bin"), Buffer.alloc(500, 1));
    await writeFile(join(dir, ".cache/k3/verify.json"), "{}");
    await writeFile(join(dir, "x.part"), "half");
    const events: StageEvent[] = [];
    const hub = await serveDirectory(dir, { lfsBytes: 400, onEvent: (event) => events.push(event) });
    try {
      expect(hub.repo).toBe("k3/miniature");
      expect(hub.commit).toMatch(/^[0-9a-f]{40}$/);
      const tree = await ask(`${hub.endpoint}/api/models/k3/miniature/tree/${hub.commit}?recursive=true`);
      const rows = JSON.parse(tree.body.toString()) as { path: string; type: string; lfs?: object }[];
      expect(rows.map(({ path, type, lfs }) => [path, type, lfs !== undefined])).toEqual([
        ["big.bin", "file", true],
        ["config.json", "file", false],
        ["sub", "directory", false],
        ["sub/model.safetensors", "file", true],
      ]);
      const location = await located(`${hub.endpoint}/k3/miniature/resolve/main/sub/model.safetensors`);
      const part = await ask(location, { headers: { range: "bytes=990-" } });
      expect(part.body.equals(Buffer.alloc(10, 7))).toBe(true);
      expect(events.at(-1)).toMatchObject({ type: "progress", done: 1502, total: 1502, unit: "bytes" });
    } finally {
      await hub.close();
    }
    // The same content elsewhere has the same commit, one byte more has not.
    const again = await serveDirectory(dir, { lfsBytes: 400, repo: "a/b" });
    await again.close();
    expect(again.commit).toBe(hub.commit);
    await writeFile(join(dir, "config.json"), "{} ");
    const changed = await serveDirectory(dir);
    await changed.close();
    expect(changed.commit).not.toBe(hub.commit);
  });
});

test("an empty directory is refused, and hashing can be stopped", async () => {
  await withTempDir(async (dir) => {
    await expect(serveDirectory(dir)).rejects.toMatchObject({ code: "E_DATA" });
    await writeFile(join(dir, "config.json"), "{}");
    const stopped = serveDirectory(dir, { signal: AbortSignal.abort() });
    await expect(stopped).rejects.toMatchObject({ code: "E_INTERRUPTED" });
  });
});
