import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

export interface Loopback {
  url: string;
  /** Paths asked for, in order. */
  asked: string[];
  close(): Promise<void>;
}

async function listen(handler: Handler): Promise<Loopback> {
  const asked: string[] = [];
  const server: Server = createServer((request, response) => {
    asked.push(request.url!);
    handler(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

export interface Metadata extends Loopback {
  values: Record<string, string>;
  /** So many of the next requests are answered with 503. */
  failing: number;
}

/** A metadata server after Google's documentation: it answers only with the header Metadata-Flavor, 404 for what is not set. */
export async function metadataServer(): Promise<Metadata> {
  const state = { values: {} as Record<string, string>, failing: 0 };
  const server = await listen((request, response) => {
    if (request.headers["metadata-flavor"] !== "Google") return void response.writeHead(403).end();
    if (state.failing > 0) {
      state.failing--;
      return void response.writeHead(503).end("try again");
    }
    const path = request.url!.slice(1);
    const list = /^(instance|project)\/attributes\/$/.exec(path);
    if (list) {
      const names = Object.keys(state.values).filter((key) => key.startsWith(path));
      return void response.end(names.map((name) => `${name.slice(path.length)}\n`).join(""));
    }
    const value = state.values[path];
    if (value === undefined) return void response.writeHead(404).end("<!DOCTYPE html>\n<title>404</title>\n");
    response.end(value);
  });
  return Object.assign(state, server, { asked: server.asked });
}

/** A release of Node.js: the node and npm of this machine behind two small scripts, packed as the real one is. */
export function nodeRelease(version: string): { bytes: Buffer; sha256: string } {
  const folder = mkdtempSync(join(tmpdir(), "k3-lab-node-"));
  const name = `node-v${version}-linux-x64`;
  const bin = join(folder, name, "bin");
  mkdirSync(bin, { recursive: true });
  const npm = realpathSync(execFileSync("which", ["npm"], { encoding: "utf8" }).trim());
  writeFileSync(join(bin, "node"), `#!/bin/sh\nexec ${process.execPath} "$@"\n`);
  writeFileSync(join(bin, "npm"), `#!/bin/sh\nexec ${process.execPath} ${npm} "$@"\n`);
  chmodSync(join(bin, "node"), 0o755);
  chmodSync(join(bin, "npm"), 0o755);
  execFileSync("tar", ["-cJf", join(folder, "node.tar.xz"), "-C", folder, name]);
  const bytes = readFileSync(join(folder, "node.tar.xz"));
  rmSync(folder, { recursive: true });
  return { bytes, sha256: createHash("sha256").update(bytes).digest("hex") };
}

export interface Mirror extends Loopback {
  /** When set, half of the next download is sent, then nothing; called once that half is out. */
  stall: (() => void) | undefined;
}

export async function nodeMirror(release: { bytes: Buffer }): Promise<Mirror> {
  const state: { stall: (() => void) | undefined } = { stall: undefined };
  const server = await listen((_request, response) => {
    response.writeHead(200, { "content-length": release.bytes.length });
    if (!state.stall) return void response.end(release.bytes);
    const sent = state.stall;
    state.stall = undefined;
    response.write(release.bytes.subarray(0, release.bytes.length >> 1), () => sent());
  });
  return Object.assign(state, server, { asked: server.asked });
}

/** A registry with one package, @k3/cli, whose k3 writes its arguments to a file and answers exit 0. */
export async function registry(version: string, record: string): Promise<Loopback> {
  const folder = mkdtempSync(join(tmpdir(), "k3-lab-cli-"));
  mkdirSync(join(folder, "package"));
  writeFileSync(
    join(folder, "package/package.json"),
    JSON.stringify({ name: "@k3/cli", version, bin: { k3: "k3.js" }, scripts: { install: "exit 1" } }),
  );
  writeFileSync(
    join(folder, "package/k3.js"),
    `#!/usr/bin/env node\nrequire("fs").appendFileSync(${JSON.stringify(record)}, JSON.stringify(process.argv.slice(2)) + "\\n");\nprocess.exit(Number(process.env.K3_FAKE_EXIT ?? 0));\n`,
  );
  execFileSync("tar", ["-czf", join(folder, "cli.tgz"), "-C", folder, "package"]);
  const bytes = readFileSync(join(folder, "cli.tgz"));
  rmSync(folder, { recursive: true });
  const integrity = `sha512-${createHash("sha512").update(bytes).digest("base64")}`;
  const server = await listen((request, response) => {
    if (request.url!.endsWith(".tgz")) return void response.end(bytes);
    const manifest = {
      name: "@k3/cli",
      version,
      bin: { k3: "k3.js" },
      hasInstallScript: true,
      dist: { integrity, tarball: `${server.url}/cli.tgz` },
    };
    response.setHeader("content-type", "application/json");
    response.end(
      JSON.stringify({
        name: "@k3/cli",
        "dist-tags": { latest: version },
        versions: { [version]: manifest },
      }),
    );
  });
  return server;
}
