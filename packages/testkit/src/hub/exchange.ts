import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { TLSSocket } from "node:tls";

/** Which of the server's hosts was asked. */
export type Where = "hub" | "cdn" | "other";

/** One line of the request log. */
export interface RequestRecord {
  where: Where;
  method: string;
  /** Path and query as sent. */
  url: string;
  /** The file that a resolve, resolve-cache or CDN request is for, decoded. */
  path: string | null;
  range: string | null;
  /** The Authorization header as sent; null when there was none. */
  auth: string | null;
  acceptEncoding: string | null;
  userAgent: string | null;
  /** 0 until the answer begins. */
  status: number;
  /** Body bytes handed to the kernel so far. */
  bytesSent: number;
  /** Milliseconds since the server started. */
  at: number;
}

/** A request being answered, and its line in the log. */
export class Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly record: RequestRecord;
  readonly url: URL;
  /** Path segments, each percent-decoded. */
  readonly segments: string[];
  /** Headers that every answer of this host carries. */
  readonly common: OutgoingHttpHeaders = {};

  constructor(where: Where, request: IncomingMessage, response: ServerResponse, at: number) {
    this.request = request;
    this.response = response;
    const scheme = (request.socket as TLSSocket).encrypted ? "https" : "http";
    this.url = new URL(request.url ?? "/", `${scheme}://${request.headers.host ?? "localhost"}`);
    this.segments = this.url.pathname.split("/").slice(1).map(decode);
    this.record = {
      where,
      method: request.method ?? "GET",
      url: request.url ?? "/",
      path: null,
      range: request.headers.range ?? null,
      auth: request.headers.authorization ?? null,
      acceptEncoding: headerText(request.headers["accept-encoding"]),
      userAgent: request.headers["user-agent"] ?? null,
      status: 0,
      bytesSent: 0,
      at,
    };
  }

  get origin(): string {
    return this.url.origin;
  }

  /** Whether anybody still listens. */
  get open(): boolean {
    return !this.response.destroyed && !this.request.socket.destroyed;
  }

  acceptsGzip(): boolean {
    return /\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))/.test(this.record.acceptEncoding ?? "");
  }

  begin(status: number, headers: OutgoingHttpHeaders): void {
    this.record.status = status;
    this.response.writeHead(status, { ...this.common, ...headers });
  }

  /** A whole short answer. HEAD gets the headers only. */
  reply(status: number, headers: OutgoingHttpHeaders, body: string | Uint8Array = ""): void {
    const bytes = typeof body === "string" ? Buffer.from(body, "utf8") : body;
    this.begin(status, { "Content-Length": bytes.length, ...headers });
    if (this.record.method === "HEAD" || bytes.length === 0) {
      this.response.end();
      return;
    }
    this.response.end(bytes, () => {
      this.record.bytesSent += bytes.length;
    });
  }

  json(status: number, value: unknown, headers: OutgoingHttpHeaders = {}): void {
    this.reply(
      status,
      { "Content-Type": "application/json; charset=utf-8", ...headers },
      JSON.stringify(value),
    );
  }

  /** An error in the Hub's form: a code and message in headers, the message again in JSON. */
  error(status: number, message: string, code?: string, headers: OutgoingHttpHeaders = {}): void {
    this.json(
      status,
      { error: message },
      { "X-Error-Message": message, ...(code === undefined ? {} : { "X-Error-Code": code }), ...headers },
    );
  }

  /** Writes body bytes and resolves once they are with the kernel, or at once when nobody listens any more. */
  write(bytes: Uint8Array): Promise<void> {
    if (!this.open) return Promise.resolve();
    return new Promise((resolve) => {
      const done = () => {
        this.response.off("close", done);
        resolve();
      };
      this.response.once("close", done);
      this.response.write(bytes, (error) => {
        if (!error) this.record.bytesSent += bytes.length;
        done();
      });
    });
  }
}

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

const headerText = (value: string | string[] | undefined): string | null =>
  value === undefined ? null : Array.isArray(value) ? value.join(", ") : value;
