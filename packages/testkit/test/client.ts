import { type IncomingHttpHeaders, request } from "node:http";

export interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  body: Buffer;
  /** Whether the body ended before its Content-Length. */
  cut: boolean;
}

/** One request over a fresh connection, redirects not followed, a broken body told apart from a whole one. */
export function ask(
  url: string,
  options: { method?: string; headers?: Record<string, string>; body?: string; timeoutMs?: number } = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const { method = "GET", headers = {}, body, timeoutMs = 5000 } = options;
    const outgoing = request(url, { method, headers, agent: false, timeout: timeoutMs }, (response) => {
      const pieces: Buffer[] = [];
      const settle = () =>
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          body: Buffer.concat(pieces),
          cut: !response.complete,
        });
      outgoing.removeAllListeners("timeout").on("timeout", () => response.destroy());
      response.on("data", (piece: Buffer) => pieces.push(piece));
      response.on("end", settle);
      response.on("error", settle);
      response.on("close", settle);
    });
    outgoing.once("timeout", () => outgoing.destroy(new Error("timeout")));
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}

/** Follows the redirect of a resolve URL by hand and returns the address of the bytes. */
export async function located(url: string): Promise<string> {
  const { status, headers } = await ask(url, { method: "HEAD" });
  if (status < 300 || status > 399) throw new Error(`${url} answered ${status}, not a redirect`);
  return new URL(headers.location!, url).href;
}
