import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { installedVersions } from "./store.ts";

// Enough of the npm registry for `npm publish` and `npm install`: packuments, tarballs and PUT, as in
// https://github.com/npm/registry/blob/main/docs/REGISTRY-API.md and docs/responses/package-metadata.md. Packages of
// others come out of the workspace's own node_modules: the versions that the lockfile names, and no network.

interface Version {
  name: string;
  version: string;
  dist: { tarball: string; integrity: string; shasum: string };
  [field: string]: unknown;
}

interface Packument {
  name: string;
  "dist-tags": Record<string, string>;
  versions: Record<string, Version>;
}

interface Publication extends Packument {
  _attachments: Record<string, { data: string; length: number }>;
}

export interface Registry {
  /** `http://127.0.0.1:PORT/` */
  url: string;
  /** `name@version` of what was published here, in the order in which it came. */
  published: string[];
  /** Paths asked for that are not here. */
  missing: string[];
  close(): Promise<void>;
}

/** Digests as the registry names them: subresource integrity, and SHA-1 in hex for old clients. */
function digests(tarball: Buffer) {
  return {
    integrity: `sha512-${createHash("sha512").update(tarball).digest("base64")}`,
    shasum: createHash("sha1").update(tarball).digest("hex"),
  };
}

/** A registry on 127.0.0.1, empty of our packages. */
export async function startRegistry(): Promise<Registry> {
  const packuments = new Map<string, Packument>();
  const tarballs = new Map<string, Buffer>();
  const published: string[] = [];
  const missing: string[] = [];
  let url = "";

  function add(manifest: { name: string; version: string }, tarball: Buffer): void {
    const { name, version } = manifest;
    const path = `-/tarball/${createHash("sha256").update(tarball).digest("hex")}.tgz`;
    tarballs.set(`/${path}`, tarball);
    const packument = packuments.get(name) ?? { name, "dist-tags": {}, versions: {} };
    packument.versions[version] = { ...manifest, dist: { tarball: `${url}${path}`, ...digests(tarball) } };
    packument["dist-tags"]["latest"] = version;
    packuments.set(name, packument);
  }

  function publish(name: string, body: Publication): [status: number, answer: object] {
    const [version, ...more] = Object.values(body.versions);
    const [attachment] = Object.values(body._attachments);
    if (!version || more.length > 0 || !attachment || version.name !== name)
      return [400, { error: "one version with one tarball, please" }];
    if (packuments.get(name)?.versions[version.version])
      return [403, { error: `${name}@${version.version} is published already` }];
    const tarball = Buffer.from(attachment.data, "base64");
    if (digests(tarball).integrity !== version.dist.integrity)
      return [400, { error: "the tarball is not that of dist.integrity" }];
    add(version, tarball);
    published.push(`${name}@${version.version}`);
    return [201, { ok: true }];
  }

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = new URL(request.url ?? "/", url).pathname;
    const name = decodeURIComponent(path.slice(1));
    const json = (status: number, body: object) =>
      response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
    if (request.method === "PUT") {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      json(...publish(name, JSON.parse(Buffer.concat(pieces).toString()) as Publication));
      return;
    }
    const tarball = tarballs.get(path);
    if (tarball) {
      response.writeHead(200, { "content-type": "application/octet-stream" }).end(tarball);
      return;
    }
    if (!packuments.has(name) && !name.startsWith("@k3/")) {
      for (const { manifest, tarball } of await installedVersions(name)) add(manifest, tarball);
    }
    const packument = packuments.get(name);
    if (packument) json(200, packument);
    else {
      missing.push(path);
      json(404, { error: "not found" });
    }
  }

  const server = createServer((request, response) => {
    answer(request, response).catch((error: Error) => response.writeHead(500).end(error.stack));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  return {
    url,
    published,
    missing,
    close: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}
