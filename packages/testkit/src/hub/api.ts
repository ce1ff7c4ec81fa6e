import type { HubFile } from "./content.ts";
import type { Exchange } from "./exchange.ts";
import type { Commit, Repository } from "./repository.ts";
import { type HubState, xetHash } from "./state.ts";

/** `/api/models/R/...`: segments are those after the repository's name. */
export async function answerApi(
  exchange: Exchange,
  state: HubState,
  repository: Repository,
  rest: string[],
): Promise<void> {
  const [route, revision, ...path] = rest;
  if (route === undefined) return modelInfo(exchange, repository, "main");
  if (route === "refs") return refs(exchange, repository);
  const commit = repository.resolve(revision ?? "main");
  if (commit === undefined) {
    return exchange.error(404, `Invalid rev id: ${revision}`, "RevisionNotFound");
  }
  if (route === "revision") return modelInfo(exchange, repository, revision ?? "main");
  if (route === "tree") return tree(exchange, state, commit, path.join("/"));
  if (route === "paths-info" && exchange.record.method === "POST") return pathsInfo(exchange, state, commit);
  if (route === "xet-read-token") {
    const exp = Math.floor(Date.now() / 1000) + 3600;
    return exchange.json(200, { accessToken: "xet_loopback", exp, casUrl: `${state.cdnOrigin}/cas` });
  }
  exchange.error(404, "Sorry, we can't find the page you are looking for.");
}

async function modelInfo(exchange: Exchange, repository: Repository, revision: string): Promise<void> {
  const commit = repository.resolve(revision);
  if (commit === undefined) return exchange.error(404, `Invalid rev id: ${revision}`, "RevisionNotFound");
  const all: Record<string, unknown> = {
    sha: commit.sha,
    private: repository.private,
    gated: repository.gated ? "manual" : false,
    disabled: false,
    downloads: 0,
    likes: 0,
    tags: ["safetensors"],
    lastModified: "2026-01-01T00:00:00.000Z",
    siblings: commit.files.map((file) => ({ rfilename: file.path })),
  };
  const wanted = exchange.url.searchParams.getAll("expand");
  const chosen = wanted.length === 0 ? all : Object.fromEntries(wanted.map((name) => [name, all[name]]));
  exchange.json(200, { _id: commit.sha.slice(0, 24), id: repository.name, ...chosen });
}

function refs(exchange: Exchange, repository: Repository): void {
  const named = [...repository.refs].filter(([name]) => !name.startsWith("refs/"));
  const branches = named.map(([name, targetCommit]) => ({ name, ref: `refs/heads/${name}`, targetCommit }));
  exchange.json(200, { branches, converts: [], tags: [] });
}

async function fileEntry(state: HubState, file: HubFile, expand: boolean): Promise<Record<string, unknown>> {
  const { sha256, oid } = await file.hashes();
  return {
    type: "file",
    oid,
    size: file.size,
    path: file.path,
    ...(sha256 === null ? {} : { lfs: { oid: sha256, size: file.size, pointerSize: 134 } }),
    ...(sha256 === null || !state.xet ? {} : { xetHash: xetHash(sha256) }),
    ...(expand
      ? { lastCommit: { id: "0".repeat(40), title: "upload", date: "2026-01-01T00:00:00.000Z" } }
      : {}),
  };
}

const directoryEntry = (path: string) => ({ type: "directory", oid: "0".repeat(40), size: 0, path });

/** All entries under a folder, sorted: files, and the directories that hold them. */
function listing(commit: Commit, folder: string, recursive: boolean): (HubFile | string)[] {
  const prefix = folder === "" ? "" : `${folder}/`;
  const entries = new Map<string, HubFile | string>();
  for (const file of commit.files) {
    if (!file.path.startsWith(prefix)) continue;
    const segments = file.path.slice(prefix.length).split("/");
    for (let depth = 1; depth < segments.length && (recursive || depth === 1); depth++) {
      const directory = prefix + segments.slice(0, depth).join("/");
      entries.set(directory, directory);
    }
    if (recursive || segments.length === 1) entries.set(file.path, file);
  }
  return [...entries].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, entry]) => entry);
}

async function tree(exchange: Exchange, state: HubState, commit: Commit, folder: string): Promise<void> {
  const { faults } = state;
  const query = exchange.url.searchParams;
  const expand = query.get("expand") === "true";
  let entries = listing(commit, folder, query.get("recursive") === "true");
  if (folder !== "" && entries.length === 0) {
    return exchange.error(404, `${folder} does not exist on "${commit.sha}"`, "EntryNotFound");
  }
  const short = faults.get("shortTree");
  if (short !== undefined) entries = entries.slice(0, -short);
  const cursor = query.get("cursor");
  const from = cursor === null ? 0 : Number(Buffer.from(cursor, "base64url").toString());
  if (from > 0 && faults.take("page2_500"))
    return exchange.error(500, "Internal Error - We're working hard to fix this");
  const limit = Number(query.get("limit") ?? Infinity);
  const size = Math.min(limit, expand ? Math.min(50, state.pageSize) : state.pageSize);
  const page = entries.slice(from, from + size);
  const rows = await Promise.all(
    page.map((entry) =>
      typeof entry === "string" ? directoryEntry(entry) : fileEntry(state, entry, expand),
    ),
  );
  for (const path of from === 0 ? (faults.get("unsafePaths") ?? []) : []) {
    rows.push({ type: "file", oid: "1".repeat(40), size: 1, path });
  }
  const repeated = faults.take("linkRepeatCursor");
  const more = from + size < entries.length;
  const linkHost = faults.get("linkHost");
  const headers: Record<string, string> = {};
  if (more || repeated || linkHost !== undefined) {
    const next = new URL(exchange.url);
    if (!repeated) next.searchParams.set("cursor", Buffer.from(String(from + size)).toString("base64url"));
    const origin = linkHost === true ? state.otherOrigin : linkHost;
    const href = origin === undefined ? next.href : new URL(next.pathname + next.search, origin).href;
    headers["Link"] = `<${href}>; rel="next"`;
  }
  exchange.json(200, rows, headers);
}

/** Most that a POST body may hold here. */
const BODY_BYTES = 4 * 2 ** 20;

async function pathsInfo(exchange: Exchange, state: HubState, commit: Commit): Promise<void> {
  const pieces: Buffer[] = [];
  let length = 0;
  for await (const piece of exchange.request as AsyncIterable<Buffer>) {
    length += piece.length;
    if (length > BODY_BYTES) return exchange.error(413, "Payload too large");
    pieces.push(piece);
  }
  const text = Buffer.concat(pieces).toString("utf8");
  let paths: unknown;
  let expand: boolean;
  if (exchange.request.headers["content-type"]?.startsWith("application/x-www-form-urlencoded")) {
    const form = new URLSearchParams(text);
    paths = form.getAll("paths");
    expand = form.get("expand")?.toLowerCase() === "true";
  } else {
    let body: { paths?: unknown; expand?: unknown };
    try {
      body = JSON.parse(text) as typeof body;
    } catch {
      return exchange.error(400, "Invalid JSON");
    }
    paths = body.paths;
    expand = body.expand === true;
  }
  if (!Array.isArray(paths)) return exchange.error(400, "paths must be an array");
  const found = new Map(
    listing(commit, "", true).map((entry) => [typeof entry === "string" ? entry : entry.path, entry]),
  );
  const rows = paths.flatMap((path) => {
    const entry = found.get(String(path));
    return entry === undefined
      ? []
      : [typeof entry === "string" ? directoryEntry(entry) : fileEntry(state, entry, expand)];
  });
  exchange.json(200, await Promise.all(rows));
}
