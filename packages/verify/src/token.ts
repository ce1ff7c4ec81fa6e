import { homedir } from "node:os";
import { join } from "node:path";
import { readOptional, StageError } from "@k3/stage";

/**
 * The access token to send to the endpoint, or undefined for none: the given one, HF_TOKEN, HUGGING_FACE_HUB_TOKEN, or
 * the login file, in the order in which the Hub's own tools look (hub.md 2.1). Throws E_USAGE for text that is no token.
 */
export async function accessToken(
  given: string | undefined,
  env: NodeJS.ProcessEnv,
): Promise<string | undefined> {
  const token = (given ?? (await implicitToken(env)))?.trim();
  if (!token) return undefined;
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new StageError("E_USAGE", "the access token has characters that no token has", {
    hint: "look at HF_TOKEN, or at the file of the login",
  });
}

async function implicitToken(env: NodeJS.ProcessEnv): Promise<string | undefined> {
  if (/^(1|on|yes|true)$/i.test(env["HF_HUB_DISABLE_IMPLICIT_TOKEN"] ?? "")) return undefined;
  const set = env["HF_TOKEN"] || env["HUGGING_FACE_HUB_TOKEN"];
  if (set) return set;
  const cache = env["XDG_CACHE_HOME"] || join(homedir(), ".cache");
  const file = env["HF_TOKEN_PATH"] || join(env["HF_HOME"] || join(cache, "huggingface"), "token");
  return readOptional(file).catch(() => undefined);
}
