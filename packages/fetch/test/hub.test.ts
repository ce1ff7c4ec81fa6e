import { readdir, readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import { atEnd, expectComplete, failure, KIB, REPO, run, sampleFiles, serve, temporary } from "./support.ts";

const SECRET = "hf_SecretTokenThatMustNotLeak0123456789";

describe("listings (hub.md section 7)", () => {
  it("row 23: follows every page of the listing, and a page that fails once", async () => {
    const files = sampleFiles(100 * KIB, 3);
    const hub = await serve(files, { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ page2_500: 1 });
    const { result } = await run(hub, dir);
    expect(result.files).toBe(files.length);
    await expectComplete(dir, files);
  });

  it("row 23: a page that keeps failing is an error, not a shorter list", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3), { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ page2_500: true });
    expect(await failure(hub, dir)).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(await readdir(dir)).toEqual([".cache"]);
  });

  it("row 23: a listing that silently lacks files is an error", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3), { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ shortTree: 2 });
    const error = await failure(hub, dir);
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(error.message).toContain("incomplete");
  });

  it("a listing whose pages go round in a circle is an error", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3));
    const dir = await temporary();
    hub.setFaults({ linkRepeatCursor: true });
    expect(await failure(hub, dir)).toMatchObject({ code: "E_HUB" });
  });

  it("rows 12 and 18: a next page on another host is a protocol error, and that host is not asked", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 3), { pageSize: 3 });
    const dir = await temporary();
    hub.setFaults({ linkHost: true });
    const error = await failure(hub, dir, { token: SECRET });
    expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(hub.requests.filter((r) => r.where === "other")).toEqual([]);
  });

  it("row 21: names that would leave the directory are refused, nothing is written outside or inside", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    for (const path of [
      "..\\evil",
      "../evil",
      "C:evil",
      "C:\\evil",
      "\\\\host\\share",
      "/tmp/evil",
      "a/../../evil",
      ".cache/k3/lock",
    ]) {
      const dir = await temporary();
      hub.setFaults({ unsafePaths: [path] });
      expect(await failure(hub, dir), path).toMatchObject({ code: "E_HUB", exit: 6 });
      expect(await readdir(dir)).toEqual([".cache"]);
      expect(await readdir(join(dir, ".cache"))).toEqual(["k3"]);
      expect(hub.requests.filter((r) => r.path !== null)).toEqual([]);
    }
  });

  it("row 20: directories of the listing are not files", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    expect(result.files).toBe(files.length);
    expect(await readFile(join(dir, "docs/deep/notes 100%#1 ü.md"), "utf8")).toBe("notes");
  });

  it("row 13: the expected hash is the listing's, not the storage's ETag that looks like one", async () => {
    const files = [syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })];
    const hub = await serve(files);
    const dir = await temporary();
    const { result } = await run(hub, dir);
    const { sha256 } = await files[0]!.hashes();
    const metadata = await readFile(
      join(dir, ".cache/huggingface/download/model.safetensors.metadata"),
      "utf8",
    );
    expect(metadata.split("\n").slice(0, 2)).toEqual([result.revision, sha256]);
  });

  it("a Hub that contradicts its own listing when asked for a file is not believed", async () => {
    for (const fault of [{ wrongEtag: true }, { wrongSize: true }] as const) {
      const hub = await serve([syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })]);
      const dir = await temporary();
      hub.setFaults(fault);
      expect(await failure(hub, dir)).toMatchObject({ code: "E_HUB" });
      expect(hub.requests.filter((r) => r.where === "cdn")).toEqual([]);
    }
  });

  it("row 17: a mirror that drops X-Linked-*, ETag and lengths is enough, with a warning", async () => {
    const files = sampleFiles(300 * KIB, 2);
    const hub = await serve(files);
    const dir = await temporary();
    hub.setFaults({ missingLinked: true });
    const { messages } = await run(hub, dir);
    await expectComplete(dir, files);
    expect(messages.filter((m) => /does not repeat size and hash/.test(m))).toHaveLength(1);
  });

  it("a branch, a tag-like ref with slashes and a full commit name the same files", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files);
    const sha = await hub.repository(REPO).commit(files.slice(1), { refs: ["refs/pr/1"] });
    const { result } = await run(hub, await temporary(), { revision: "refs/pr/1" });
    expect(result).toMatchObject({ revision: sha, files: files.length - 1 });
    expect((await run(hub, await temporary(), { revision: sha })).result.revision).toBe(sha);
  });

  it("a renamed repository is followed within the endpoint", async () => {
    const files = sampleFiles(300 * KIB, 1);
    const hub = await serve(files, { renamed: { "old/name": REPO } });
    const dir = await temporary();
    await run(hub, dir, { repo: "old/name" });
    await expectComplete(dir, files);
  });

  it("a redirect that goes round ends with E_HUB", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    hub.setFaults({ redirectLoop: true });
    const error = await failure(hub, await temporary());
    expect(error).toMatchObject({ code: "E_HUB" });
    expect(error.message).toContain("redirects more than");
  });

  it("an endpoint that answers with a web page is named as such", async () => {
    const server = createServer((_, response) =>
      response.end("<!doctype html><title>Welcome to our Wi-Fi</title>"),
    );
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    atEnd(() => new Promise((resolve) => server.close(resolve)));
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const error = await failure({ endpoint }, await temporary());
    expect(error).toMatchObject({ code: "E_HUB" });
    expect(error.message).toContain("a web page instead of JSON");
  });
});
