import { StageError } from "@k3/stage";

export const DEFAULT_ENDPOINT = "https://huggingface.co";

/** The Hub to ask, normalised: the given one, else `HF_ENDPOINT`, else huggingface.co. Throws E_USAGE. */
export function chooseEndpoint(
  given: string | undefined,
  env: Record<string, string | undefined> = process.env,
): string {
  return normaliseEndpoint(given ?? (env["HF_ENDPOINT"] || DEFAULT_ENDPOINT));
}

/**
 * An endpoint as origin and path, without a slash at its end. Throws E_USAGE for what is no http or https URL, or has a
 * query or credentials; the message does not repeat it.
 */
export function normaliseEndpoint(text: string): string {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new StageError("E_USAGE", "the endpoint is not a URL", { hint: `write ${DEFAULT_ENDPOINT}` });
  }
  if ((url.protocol !== "https:" && url.protocol !== "http:") || url.search || url.hash) {
    throw new StageError("E_USAGE", "an endpoint is an http or https URL without a query");
  }
  if (url.username || url.password) {
    throw new StageError("E_USAGE", "an endpoint must not carry credentials", {
      hint: "put the token into HF_TOKEN",
    });
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
}

/** Refuses (E_USAGE) what cannot be the name of a repository, and would lead to another place of the endpoint. */
export function requireRepoName(repo: string): void {
  if (/^[\w.-]+(\/[\w.-]+)?$/.test(repo) && !/(^|\/)\.+(\/|$)/.test(repo)) return;
  throw new StageError("E_USAGE", `"${repo}" is not the name of a repository`, {
    hint: "write namespace/name",
  });
}
