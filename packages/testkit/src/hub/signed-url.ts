import { createHmac, timingSafeEqual } from "node:crypto";

/** How the storage signs: query parameters of S3 presigned URLs, or of CloudFront ones. Clients read the expiry from both. */
export type Signing = "amz" | "cloudfront";

/** Signs and checks the URLs that redirects lead to; the key lives as long as the server. */
export class UrlSigner {
  readonly #key: Buffer;
  readonly #signing: Signing;

  constructor(key: Buffer, signing: Signing) {
    this.#key = key;
    this.#signing = signing;
  }

  sign(origin: string, pathname: string, filename: string, ttlMs: number): string {
    const now = Date.now();
    const expires = now + ttlMs;
    const signature = this.#signature(pathname, expires);
    const url = new URL(pathname, origin);
    const disposition = `inline; filename*=UTF-8''${encodeURIComponent(filename)}`;
    const query =
      this.#signing === "amz"
        ? {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Date": `${new Date(now).toISOString().replace(/[-:]|\.\d+/g, "")}`,
            "X-Amz-Expires": String(Math.ceil(ttlMs / 1000)),
            "X-Amz-SignedHeaders": "host",
            "X-Amz-Signature": signature,
          }
        : {
            Expires: String(Math.ceil(expires / 1000)),
            Policy: Buffer.from(pathname).toString("base64url"),
            Signature: signature,
            "Key-Pair-Id": "LOOPBACK",
          };
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    // Real expiries are whole seconds; tests want shorter ones.
    url.searchParams.set("x-ms", String(expires));
    url.searchParams.set("response-content-disposition", disposition);
    return url.href;
  }

  /** The state of a URL's signature at this moment: it is checked when a request starts, not while a body runs. */
  check(url: URL): "valid" | "expired" | "invalid" {
    const expires = Number(url.searchParams.get("x-ms"));
    const given = Buffer.from(
      url.searchParams.get("X-Amz-Signature") ?? url.searchParams.get("Signature") ?? "",
    );
    const expected = Buffer.from(this.#signature(url.pathname, expires));
    if (given.length !== expected.length || !timingSafeEqual(given, expected)) return "invalid";
    return Date.now() > expires ? "expired" : "valid";
  }

  #signature(pathname: string, expires: number): string {
    return createHmac("sha256", this.#key).update(`${pathname}\n${expires}`).digest("hex");
  }
}
