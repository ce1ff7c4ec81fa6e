import { readdir, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { inspect } from "node:util";
import { loopbackCertificate, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  atEnd,
  expectComplete,
  failure,
  KIB,
  REPO,
  run,
  said,
  sampleFiles,
  serve,
  spawnRun,
  startProxy,
  temporary,
  testOptions,
} from "./support.ts";

const SECRET = "hf_SecretTokenThatMustNotLeak0123456789";

describe("who is told what (hub.md section 7)", () => {
  it("row 12: the token goes to the endpoint's origin alone, and appears in no event, error or file", async () => {
    const files = sampleFiles(600 * KIB, 2);
    const hub = await serve(files, {
      repositories: [{ name: REPO, files, private: true }],
      tokens: [SECRET],
    });
    const dir = await temporary();
    hub.setFaults({ cdnRejectsAuth: true, cdn503: 2 });
    const { events } = await run(hub, dir, { token: SECRET });
    await expectComplete(dir, files);
    for (const request of hub.requests) {
      expect([request.where, request.auth]).toEqual([
        request.where,
        request.where === "hub" ? `Bearer ${SECRET}` : null,
      ]);
    }
    expect(JSON.stringify(events)).not.toContain(SECRET);
    for (const name of await readdir(dir, { recursive: true, withFileTypes: true })) {
      if (!name.isFile()) continue;
      const text = await readFile(join(name.parentPath, name.name), "latin1");
      expect(text.includes(SECRET), name.name).toBe(false);
      if (name.parentPath.includes(".cache")) expect(text, name.name).not.toMatch(/X-Amz|Signature=/);
    }
  });

  it("a server that repeats the token in its refusal does not get it into the error", async () => {
    const server = createServer((request, response) => {
      response.writeHead(403, { "x-error-message": `no access for ${request.headers.authorization}` }).end();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    atEnd(() => new Promise((resolve) => server.close(resolve)));
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    for (const token of [SECRET, "plain-Token.of.Another_Kind"]) {
      const error = await failure({ endpoint }, await temporary(), { token });
      expect(error.message).toContain("no access for");
      expect(inspect(error, { depth: 20, showHidden: true })).not.toContain(token);
    }
  });

  it("row 12: bodies may come from another host, but without the token", async () => {
    const hub = await serve([syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })]);
    const dir = await temporary();
    hub.setFaults({ locationHost: true });
    // The third host serves empty lists, so the run fails; what matters is what it was told.
    const error = await failure(hub, dir, { token: SECRET });
    expect(error.message).not.toContain(SECRET);
    const asked = hub.requests.filter((r) => r.where === "other");
    expect(asked.length).toBeGreaterThan(0);
    expect(asked.map((r) => r.auth)).toEqual(asked.map(() => null));
  });

  it("row 12: a redirect from https to http is refused, and nobody is told anything there", async () => {
    const tls = loopbackCertificate();
    const files = [syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })];
    const hub = await serve(files, { tls });
    const ca = join(await temporary(), "ca.pem");
    await writeFile(ca, tls.cert);
    const env = { NODE_EXTRA_CA_CERTS: ca };
    hub.setFaults({ downgradeHttp: true });
    const { output } = await spawnRun(testOptions(hub, await temporary(), { token: SECRET }), { env }).ended;
    expect(said(output).error).toMatchObject({ code: "E_HUB", exit: 6 });
    expect(said(output).error!.message).toContain("from https to http");
    expect(hub.requests.filter((r) => r.where === "cdn")).toEqual([]);
    hub.clearFaults();
    const dir = await temporary();
    expect((await spawnRun(testOptions(hub, dir), { env }).ended).code).toBe(0);
    await expectComplete(dir, files);
  });

  it("a certificate that is not trusted ends the run at once, naming the remedy", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1), { tls: loopbackCertificate() });
    const error = await failure(hub, await temporary());
    expect(error).toMatchObject({ code: "E_NETWORK", exit: 6 });
    expect(error.hint).toContain("NODE_EXTRA_CA_CERTS");
    expect(hub.requests).toEqual([]);
  });

  it("row 18: with the default endpoint, bodies come from known hosts or those given by cdnHosts alone", async () => {
    const tls = loopbackCertificate(["huggingface.co", "127.0.0.1", "127.0.0.2"]);
    const files = [syntheticFile("model.safetensors", 600 * KIB, { seed: 4 })];
    const hub = await serve(files, { tls });
    const ca = join(await temporary(), "ca.pem");
    await writeFile(ca, tls.cert);
    // Nothing but the name of the real Hub, led to the loopback one.
    const { url, tunnels } = await startProxy((host) =>
      host === "huggingface.co:443" ? new URL(hub.endpoint).host : host,
    );
    const env = {
      NODE_EXTRA_CA_CERTS: ca,
      HTTPS_PROXY: url,
      https_proxy: url,
      NO_PROXY: "",
      no_proxy: "",
      HF_ENDPOINT: "",
    };
    const options = { ...testOptions(hub, await temporary(), { token: SECRET }), endpoint: undefined };
    const refused = said((await spawnRun(options, { env }).ended).output).error!;
    expect(refused).toMatchObject({
      code: "E_HUB",
      exit: 6,
      hint: expect.stringContaining("--cdn-host 127.0.0.2"),
    });
    expect(new Set(tunnels)).toEqual(new Set(["huggingface.co:443"]));
    const allowed = await spawnRun({ ...options, cdnHosts: ["127.0.0.2"] }, { env }).ended;
    expect(said(allowed.output).result).toMatchObject({ downloaded_bytes: 600 * KIB });
    expect(hub.requests.filter((r) => r.where === "cdn").map((r) => r.auth)).toEqual([null, null, null]);
  });

  it("row 22: a token that does not begin with hf_ works with one's own endpoint", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const hub = await serve(files, { repositories: [{ name: REPO, files, private: true }], tokens: ["abc"] });
    const dir = await temporary();
    await run(hub, dir, { token: "abc" });
    await expectComplete(dir, files);
  });

  it("row 25: a gated repository without access ends at once, with one request for it", async () => {
    const files = sampleFiles(100 * KIB, 1);
    const gated = { name: REPO, files, gated: true, granted: ["good"] };
    const hub = await serve(files, { repositories: [gated, { name: "ns/private", files, private: true }] });
    for (const token of ["", "other"]) {
      hub.clearLog();
      const error = await failure(hub, await temporary(), { token, concurrency: 1 });
      expect(error).toMatchObject({ code: "E_HUB", exit: 6 });
      expect(error.message).toContain("gated");
      expect(error.hint).toMatch(/terms/);
      expect(hub.requests.filter((r) => r.path !== null)).toHaveLength(1);
    }
    hub.clearLog();
    expect(await failure(hub, await temporary(), { repo: "ns/private" })).toMatchObject({ code: "E_HUB" });
    expect(hub.requests).toHaveLength(1);
    await run(hub, await temporary(), { token: "good" });
  });

  it("names what is missing: a repository, a revision", async () => {
    const hub = await serve(sampleFiles(100 * KIB, 1));
    expect((await failure(hub, await temporary(), { repo: "ns/none" })).message).toContain("does not exist");
    expect((await failure(hub, await temporary(), { revision: "none" })).message).toContain(
      "no such revision",
    );
    expect((await failure(hub, await temporary(), { revision: "1".repeat(40) })).exit).toBe(6);
  });
});
