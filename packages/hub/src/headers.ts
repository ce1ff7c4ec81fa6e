/** Parsers of the response headers that decide what a download does. None throws: what is malformed is undefined. */

export type HeaderMap = Record<string, string | string[] | undefined>;

/** One header as text; a repeated header is joined with commas, as RFC 9110 section 5.3 allows. */
export function headerText(headers: HeaderMap, name: string): string | undefined {
  const value = headers[name];
  return Array.isArray(value) ? value.join(", ") : value;
}

/** A decimal integer without sign that a double holds exactly. */
export function parseCount(text: string | undefined): number | undefined {
  if (text === undefined || !/^\d{1,16}$/.test(text)) return undefined;
  const value = Number(text);
  return Number.isSafeInteger(value) ? value : undefined;
}

export type ContentRange =
  | { kind: "range"; first: number; last: number; total: number | null }
  | { kind: "unsatisfied"; total: number };

/** `Content-Range` (RFC 9110 section 14.4): `bytes 0-9/100`, `bytes 0-9/*`, or `bytes * /100` (without the space). */
export function parseContentRange(text: string | undefined): ContentRange | undefined {
  if (text === undefined) return undefined;
  const match = /^\s*bytes\s+(?:(\d+)-(\d+)|\*)\/(\d+|\*)\s*$/i.exec(text);
  if (!match) return undefined;
  const total = match[3] === "*" ? null : parseCount(match[3]);
  if (total === undefined) return undefined;
  if (match[1] === undefined) return total === null ? undefined : { kind: "unsatisfied", total };
  const first = parseCount(match[1]);
  const last = parseCount(match[2]);
  if (first === undefined || last === undefined || first > last) return undefined;
  if (total !== null && last >= total) return undefined;
  return { kind: "range", first, last, total };
}

export interface Link {
  target: string;
  /** Relation types, lower case. */
  rel: string[];
}

/** `Link` (RFC 8288 section 3): every link with its relations. Parsing stops at the first malformed link. */
export function parseLink(text: string | undefined): Link[] {
  const links: Link[] = [];
  let rest = text ?? "";
  for (;;) {
    const target = /^[\s,]*<([^<>]*)>/.exec(rest);
    if (!target) return links;
    rest = rest.slice(target[0].length);
    const rel: string[] = [];
    for (;;) {
      const parameter = /^\s*;\s*([!#$&+\-.^_`|~\w]+)\s*(?:=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]*)))?/.exec(
        rest,
      );
      if (!parameter) break;
      rest = rest.slice(parameter[0].length);
      if (parameter[1]!.toLowerCase() !== "rel" || rel.length > 0) continue;
      rel.push(...(parameter[2] ?? parameter[3] ?? "").toLowerCase().split(/\s+/).filter(Boolean));
    }
    links.push({ target: target[1]!, rel });
  }
}

export interface RateLimit {
  /** Name of the quota: on the Hub `api`, `resolvers` or `pages`. */
  bucket: string;
  remaining: number;
  /** Seconds until the quota is full again. */
  resetSeconds: number;
  /** Requests per window, when a `RateLimit-Policy` for this bucket came along. */
  quota?: number;
}

/** `RateLimit` and `RateLimit-Policy` (IETF draft-ietf-httpapi-ratelimit-headers-09), as the Hub sends them. */
export function parseRateLimit(limit: string | undefined, policy?: string): RateLimit[] {
  const quotas = new Map<string, number>();
  for (const item of listItems(policy)) {
    const quota = item.parameters.get("q");
    if (quota !== undefined) quotas.set(item.name, quota);
  }
  const limits: RateLimit[] = [];
  for (const item of listItems(limit)) {
    const remaining = item.parameters.get("r");
    const resetSeconds = item.parameters.get("t");
    if (remaining === undefined || resetSeconds === undefined) continue;
    const quota = quotas.get(item.name);
    limits.push({ bucket: item.name, remaining, resetSeconds, ...(quota === undefined ? {} : { quota }) });
  }
  return limits;
}

/** Items of a structured-field list with numeric parameters. The Hub puts a second string before the name: the last counts. */
function listItems(text: string | undefined): { name: string; parameters: Map<string, number> }[] {
  const items: { name: string; parameters: Map<string, number> }[] = [];
  for (const member of (text ?? "").split(",")) {
    const parameters = new Map<string, number>();
    let name: string | undefined;
    for (const piece of member.split(";")) {
      const quoted = /^\s*"([^"]*)"\s*$/.exec(piece);
      const number = /^\s*([a-z*][a-z0-9_.*-]*)\s*=\s*(\d{1,15})\s*$/.exec(piece);
      if (quoted) name = quoted[1]!;
      else if (number) parameters.set(number[1]!, Number(number[2]));
    }
    if (name !== undefined) items.push({ name, parameters });
  }
  return items;
}

/** `Retry-After` in seconds or as an HTTP date; seconds from `nowMs`, never negative. */
export function parseRetryAfter(text: string | undefined, nowMs: number): number | undefined {
  if (text === undefined) return undefined;
  const seconds = parseCount(text.trim());
  if (seconds !== undefined) return seconds;
  const date = /[a-z]{3}/i.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(date) ? undefined : Math.max(0, (date - nowMs) / 1000);
}

/** An entity tag without weakness mark and quotes, for comparison with the one seen before. */
export function parseETag(text: string | undefined): string | undefined {
  return text === undefined ? undefined : /^\s*(?:W\/)?"?([^"]*)"?\s*$/.exec(text)?.[1];
}

/**
 * Seconds that a signed URL will live, from its query: S3 signature version 4 (`X-Amz-Date`, `X-Amz-Expires`) or
 * CloudFront (`Expires`, Unix seconds). The server's own clock (its `Date` header) is used where it is known: ours may be
 * wrong. Undefined for a URL without expiry.
 */
export function signedUrlSeconds(url: URL, serverNowMs: number): number | undefined {
  const query = new Map([...url.searchParams].map(([key, value]) => [key.toLowerCase(), value]));
  const lifetime = parseCount(query.get("x-amz-expires"));
  const signed = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(query.get("x-amz-date") ?? "");
  if (lifetime !== undefined && signed) {
    const [year, month, day, hour, minute, second] = signed.slice(1).map(Number) as [
      number,
      number,
      number,
      number,
      number,
      number,
    ];
    const at = Date.UTC(year, month - 1, day, hour, minute, second);
    return at / 1000 + lifetime - serverNowMs / 1000;
  }
  const expires = Number(/^\d{1,12}(\.\d+)?$/.exec(query.get("expires") ?? "")?.[0] ?? Number.NaN);
  return Number.isNaN(expires) ? undefined : expires - serverNowMs / 1000;
}
