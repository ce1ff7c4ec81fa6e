import { sendFile, sendGzip } from "./body.ts";
import { type HubFile, lfsPointer } from "./content.ts";
import type { Exchange } from "./exchange.ts";
import type { Commit, Repository } from "./repository.ts";
import { type HubState, storageEtag, xetHash } from "./state.ts";

const XET_INFO = "application/vnd.xet-fileinfo+json";

/** `GET|HEAD /R/resolve/REV/PATH` (or `raw`): a redirect to where the bytes are, with the file's facts on it. */
export async function answerResolve(
  exchange: Exchange,
  state: HubState,
  repository: Repository,
  kind: "resolve" | "raw",
  revision: string,
  path: string,
): Promise<void> {
  const { faults } = state;
  exchange.record.path = path;
  const commit = repository.resolve(revision);
  if (commit === undefined) return exchange.error(404, `Invalid rev id: ${revision}`, "RevisionNotFound");
  const file = commit.byPath.get(path);
  if (file === undefined) return exchange.error(404, "Entry not found", "EntryNotFound");
  if (faults.take("redirectLoop", path)) {
    return exchange.reply(302, { Location: exchange.url.pathname + exchange.url.search });
  }
  if (faults.take("acceptQueueFull", path)) {
    const hole = await state.blackHole();
    return exchange.reply(302, {
      ...(await linkedHeaders(exchange, state, repository, commit, file)),
      Location: hole.origin,
    });
  }
  const { sha256, oid } = await file.hashes();
  if (sha256 !== null && kind === "raw") {
    return exchange.reply(
      200,
      { "Content-Type": "text/plain", ETag: `"${oid}"` },
      lfsPointer(sha256, file.size),
    );
  }
  if (sha256 !== null) return redirectToStorage(exchange, state, repository, commit, file);
  // Private, gated and canonical repositories, and empty files, are served in place.
  if (file.size === 0 || repository.private || repository.gated || !repository.name.includes("/")) {
    return sendPlain(exchange, state, commit, file);
  }
  const cache = [
    "",
    "api",
    "resolve-cache",
    "models",
    ...repository.name.split("/"),
    commit.sha,
    ...path.split("/"),
  ];
  const query = new URLSearchParams([["etag", `"${oid}"`]]);
  const missing = faults.take("missingLinked", path);
  exchange.reply(307, {
    ...(missing
      ? {}
      : { "X-Repo-Commit": commit.sha, "X-Linked-Size": file.size, "X-Linked-ETag": `"${oid}"` }),
    "Accept-Ranges": "bytes",
    Location: `${cache.map(encodeURIComponent).join("/")}?${query}`,
  });
}

/** `GET|HEAD /api/resolve-cache/models/R/COMMIT/PATH`. */
export async function answerResolveCache(
  exchange: Exchange,
  state: HubState,
  repository: Repository,
  revision: string,
  path: string,
): Promise<void> {
  exchange.record.path = path;
  const commit = repository.commits.get(revision);
  const file = commit?.byPath.get(path);
  if (commit === undefined || file === undefined)
    return exchange.error(404, "Entry not found", "EntryNotFound");
  await sendPlain(exchange, state, commit, file);
}

async function sendPlain(exchange: Exchange, state: HubState, commit: Commit, file: HubFile): Promise<void> {
  const { oid } = await file.hashes();
  exchange.common["X-Repo-Commit"] = commit.sha;
  if (file.size > 0 && exchange.acceptsGzip()) {
    return sendGzip(exchange, file, { "Content-Type": "text/plain; charset=utf-8", ETag: `W/"${oid}"` });
  }
  await sendFile(exchange, file, oid, state);
}

async function linkedHeaders(
  exchange: Exchange,
  state: HubState,
  repository: Repository,
  commit: Commit,
  file: HubFile,
): Promise<Record<string, string>> {
  const { faults } = state;
  const sha256 = (await file.hashes()).sha256 ?? "";
  if (faults.take("missingLinked", file.path)) return {};
  const etag = faults.take("wrongEtag", file.path) ? storageEtag(sha256) : sha256;
  const size = file.size + (faults.take("wrongSize", file.path) ? 1 : 0);
  const token = `${exchange.origin}/api/models/${repository.name}/xet-read-token/${commit.sha}`;
  const reconstruction = `${state.cdnOrigin}/cas/v1/reconstructions/${xetHash(sha256)}`;
  return {
    "X-Repo-Commit": commit.sha,
    "X-Linked-Size": String(size),
    "X-Linked-ETag": `"${etag}"`,
    "Accept-Ranges": "bytes",
    ...(state.xet
      ? {
          "X-Xet-Hash": xetHash(sha256),
          Link: `<${token}>; rel="xet-auth", <${reconstruction}>; rel="xet-reconstruction-info"`,
        }
      : {}),
  };
}

async function redirectToStorage(
  exchange: Exchange,
  state: HubState,
  repository: Repository,
  commit: Commit,
  file: HubFile,
): Promise<void> {
  const { faults } = state;
  const sha256 = (await file.hashes()).sha256 ?? "";
  const headers = await linkedHeaders(exchange, state, repository, commit, file);
  if (state.xet && exchange.request.headers.accept?.includes(XET_INFO)) {
    const body = JSON.stringify({ hash: xetHash(sha256) });
    return exchange.reply(
      200,
      { ...headers, "Content-Type": `${XET_INFO}; charset=utf-8`, ETag: `"${sha256}"` },
      body,
    );
  }
  const object = xetHash(sha256);
  state.objects.set(object, file);
  const locationHost = faults.get("locationHost");
  const origin =
    locationHost === true
      ? state.otherOrigin
      : (locationHost ?? (faults.take("downgradeHttp", file.path) ? state.plainCdnOrigin : state.cdnOrigin));
  const name = file.path.split("/").at(-1)!;
  const ttl = faults.get("ttlMs") ?? state.ttlMs;
  const location = state.signer.sign(
    origin,
    `/xet-bridge-us/${commit.sha.slice(0, 24)}/${object}`,
    name,
    ttl,
  );
  exchange.reply(
    302,
    { ...headers, "Content-Type": "text/plain", Location: location },
    `Found. Redirecting to ${location}`,
  );
}

/** `GET|HEAD /xet-bridge-us/REPO/OBJECT?signature` on the storage host. */
export async function answerStorage(exchange: Exchange, state: HubState): Promise<void> {
  const { faults } = state;
  const [bridge, , object] = exchange.segments;
  const file = bridge === "xet-bridge-us" ? state.objects.get(object ?? "") : undefined;
  exchange.record.path = file?.path ?? null;
  if (file === undefined) return xml(exchange, 404, "NoSuchKey", "The specified key does not exist.");
  if (exchange.record.auth !== null && faults.take("cdnRejectsAuth", file.path)) {
    return xml(exchange, 400, "InvalidArgument", "Only one auth mechanism allowed");
  }
  if (faults.take("cdn503", file.path))
    return xml(exchange, 503, "SlowDown", "Please reduce your request rate.");
  if (faults.take("cdn400", file.path)) return xml(exchange, 400, "InvalidRequest", "Bad request");
  const signature = state.signer.check(exchange.url);
  if (signature !== "valid") {
    const message = signature === "expired" ? "Request has expired" : "Access denied";
    return xml(exchange, 403, signature === "expired" ? "AccessDenied" : "SignatureDoesNotMatch", message);
  }
  exchange.common["X-Cache"] = "Hit from cloudfront";
  const { sha256, oid } = await file.hashes();
  await sendFile(exchange, file, storageEtag(sha256 ?? oid), state);
}

function xml(exchange: Exchange, status: number, code: string, message: string): void {
  const body = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code><Message>${message}</Message></Error>`;
  exchange.reply(status, { "Content-Type": "application/xml" }, body);
}
