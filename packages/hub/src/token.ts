import { homedir } from "node:os";
import { join } from "node:path";
import { readOptional, StageError } from "@k3/stage";

type Environment = Record<string, string | undefined>;

/**
 * The access token to use, or undefined for none: the explicit one, then `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, then the
 * login file (`HF_TOKEN_PATH`, or `token` in `HF_HOME`), in the order of the Hub's own tools. An explicit empty string, or
 * `HF_HUB_DISABLE_IMPLICIT_TOKEN`, means anonymous. Throws E_USAGE for a token that cannot be a header value.
 */
export async function findToken(
  explicit: string | undefined,
  env: Environment = process.env,
): Promise<string | undefined> {
  const token = (explicit ?? (await implicitToken(env)))?.trim();
  if (!token) return undefined;
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new StageError("E_USAGE", "the access token contains spaces or characters that no token has", {
      hint: "check HF_TOKEN or the login file; the token itself is not shown",
    });
  }
  return token;
}

async function implicitToken(env: Environment): Promise<string | undefined> {
  if (/^(1|on|yes|true)$/i.test(env["HF_HUB_DISABLE_IMPLICIT_TOKEN"] ?? "")) return undefined;
  const fromEnvironment = (env["HF_TOKEN"] || env["HUGGING_FACE_HUB_TOKEN"])?.trim();
  if (fromEnvironment) return fromEnvironment;
  const cache = env["XDG_CACHE_HOME"] || join(env["HOME"] || homedir(), ".cache");
  const home = env["HF_HOME"] || join(cache, "huggingface");
  try {
    return await readOptional(env["HF_TOKEN_PATH"] || join(home, "token"));
  } catch {
    return undefined; // an unreadable login file is no reason not to download a public model
  }
}

/** Text with every occurrence of the token, and the query of every URL (signatures), taken out. */
export function redact(text: string, token: string | undefined): string {
  const withoutToken = token ? text.replaceAll(token, "[token]") : text;
  return withoutToken
    .replace(/\b(hf_|Bearer\s+)[A-Za-z0-9._~+/=-]{4,}/gi, "[token]")
    .replace(/(https?:\/\/[^\s"'<>?#]+)[?#][^\s"'<>]*/gi, "$1?...");
}

/** An error without what `redact` takes out, in its message, hint and details and in the errors that caused it. */
export function redactError(error: StageError, token: string | undefined): StageError {
  const { code, hint, details, cause } = error;
  const clean = new StageError(code, redact(error.message, token), {
    ...(hint === undefined ? {} : { hint: redact(hint, token) }),
    ...(details === undefined ? {} : { details: redactValue(details, token) as Record<string, unknown> }),
    ...(cause === undefined ? {} : { cause: redactValue(cause, token) }),
  });
  if (error.stack !== undefined) clean.stack = redact(error.stack, token);
  return clean;
}

/** Errors become plain ones with the same name, code and trace: what else they carry (sockets, requests) is nobody's to see. */
function redactValue(value: unknown, token: string | undefined, depth = 0): unknown {
  if (typeof value === "string") return redact(value, token);
  if (typeof value !== "object" || value === null) return value;
  if (depth > 8) return undefined;
  const inner = (each: unknown) => redactValue(each, token, depth + 1);
  if (Array.isArray(value)) return value.map(inner);
  if (!(value instanceof Error))
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, inner(each)]));
  const { code } = value as NodeJS.ErrnoException;
  const clean = new Error(
    redact(value.message, token),
    value.cause === undefined ? {} : { cause: inner(value.cause) },
  );
  return Object.assign(clean, {
    name: value.name,
    stack: redact(value.stack ?? "", token),
    ...(code === undefined ? {} : { code }),
  });
}

/** A URL for messages: no query (it may be a signature), no credentials. */
export function shownUrl(url: URL): string {
  return `${url.origin}${url.pathname}`;
}
