import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { StageError, StageEvent } from "@k3/stage";
import { bytesFile, fileBytes, type Hub, type HubFile, startHub, syntheticFile } from "@k3/testkit";
import { afterEach, expect } from "vitest";
import { fetchSnapshot } from "../src/index.ts";
import type { FetchOptions, FetchResult, Timing } from "../src/options.ts";

export const KIB = 1024;
export const MIB = 1024 * 1024;

/** Times that let a test of waits and retries end within seconds. */
export const FAST: Partial<Timing> = {
  connect: 1500,
  headers: 3000,
  stall: 700,
  tailStall: 700,
  backoffBase: 4,
  backoffCap: 60,
  ratePad: 5,
  refreshWaits: [4, 20, 60],
  giveUp: 20_000,
  adapt: 300,
  progress: 50,
};

/** A repository like the real one in small: config, tokenizer, nested and odd names, an empty file, shards. */
export function sampleFiles(shardBytes = 3 * MIB, shards = 3): HubFile[] {
  return [
    bytesFile("config.json", '{"model_type":"kimi"}'),
    bytesFile("tiktoken.model", "IQ== 0\nIg== 1\n"),
    bytesFile("tokenizer_config.json", "{}"),
    bytesFile(".gitattributes", "*.safetensors filter=lfs\n"),
    bytesFile("empty.txt", ""),
    bytesFile("docs/deep/notes 100%#1 ü.md", "notes"),
    ...Array.from({ length: shards }, (_, i) =>
      syntheticFile(shardName(i, shards), shardBytes + i, { seed: i + 1 }),
    ),
  ];
}

export const shardName = (i: number, of: number) =>
  `model-${String(i + 1).padStart(5, "0")}-of-${String(of).padStart(6, "0")}.safetensors`;

export const REPO = "ns/model";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

export const atEnd = (cleanup: () => Promise<unknown>) => cleanups.push(cleanup);

export async function serve(
  files: HubFile[] = sampleFiles(),
  options: Partial<Parameters<typeof startHub>[0]> = {},
): Promise<Hub> {
  const hub = await startHub({ repositories: [{ name: REPO, files }], ...options });
  atEnd(() => hub.close());
  return hub;
}

export async function temporary(under = tmpdir()): Promise<string> {
  const dir = await mkdtemp(join(under, "k3-fetch-"));
  atEnd(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

export interface Ran {
  result: FetchResult;
  events: StageEvent[];
  messages: string[];
}

/** The options of a test run: small segments, short times, anonymous. */
export function testOptions(
  hub: Pick<Hub, "endpoint">,
  dir: string,
  options: Partial<FetchOptions> = {},
): FetchOptions {
  const { internals, ...rest } = options;
  return {
    repo: REPO,
    dir,
    endpoint: hub.endpoint,
    token: "",
    ...rest,
    internals: {
      segmentBytes: 256 * KIB,
      smallBytes: 64 * KIB,
      ...internals,
      timing: { ...FAST, ...internals?.timing },
    },
  };
}

export async function run(
  hub: Pick<Hub, "endpoint">,
  dir: string,
  options: Partial<FetchOptions> = {},
): Promise<Ran> {
  const events: StageEvent[] = [];
  const result = await fetchSnapshot({
    onEvent: (event) => events.push(event),
    ...testOptions(hub, dir, options),
  });
  return { result, events, messages: events.flatMap((e) => (e.type === "log" ? [e.message] : [])) };
}

/** The StageError that a run ends with. */
export async function failure(
  hub: Pick<Hub, "endpoint">,
  dir: string,
  options: Partial<FetchOptions> = {},
): Promise<StageError> {
  try {
    await run(hub, dir, options);
  } catch (error) {
    expect(error).toMatchObject({ name: "StageError" });
    return error as StageError;
  }
  throw new Error("the run was expected to fail");
}

/** Every file is there, byte for byte, and nothing of a download is left beside them. */
export async function expectComplete(dir: string, files: readonly HubFile[]): Promise<void> {
  for (const file of files) {
    const found = await readFile(join(dir, ...file.path.split("/")));
    if (!found.equals(await fileBytes(file))) throw new Error(`${file.path} differs from its source`);
  }
  expect(await leftovers(dir)).toEqual([]);
}

export async function leftovers(dir: string): Promise<string[]> {
  return readdir(join(dir, ".cache/k3/parts")).catch(() => []);
}

/** Body bytes that a host sent for a file. */
export function sentFor(hub: Hub, path: string): number {
  return hub.requests
    .filter((r) => r.path === path && (r.status === 200 || r.status === 206))
    .reduce((sum, r) => sum + r.bytesSent, 0);
}

/** A CONNECT proxy that leads a host (`name:port`) to where `route` says, or refuses it. */
export async function startProxy(
  route: (host: string) => string | undefined,
): Promise<{ url: string; tunnels: string[] }> {
  const tunnels: string[] = [];
  const proxy = createServer((_, response) => response.writeHead(500).end());
  proxy.on("connect", (request, socket) => {
    tunnels.push(request.url!);
    socket.on("error", () => undefined);
    const target = route(request.url!);
    if (target === undefined) return socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    const [host, port] = target.split(":");
    const upstream = connect(Number(port), host!, () => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      upstream.pipe(socket).pipe(upstream);
    });
    upstream.on("error", () => socket.destroy());
    return undefined;
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  atEnd(async () => {
    proxy.closeAllConnections();
    proxy.close();
  });
  return { url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, tunnels };
}

/** Whether so many bytes have been downloaded. */
export const downloading = (bytes: number) => (event: StageEvent) =>
  event.type === "progress" && event.phase === "downloading" && event.done >= bytes;

/** For `before` of spawnRun: every sync of a file takes so much longer. */
export const slowSyncs = (ms: number): string => `
  const { open } = await import("node:fs/promises");
  const { setTimeout } = await import("node:timers/promises");
  const probe = await open("/dev/null");
  const proto = Object.getPrototypeOf(probe);
  await probe.close();
  const original = proto.datasync;
  proto.datasync = async function () {
    await setTimeout(${ms});
    return original.call(this);
  };`;

/** A run in a process of its own, of the built package, to be killed or watched from outside. */
export function spawnRun(
  options: FetchOptions,
  { env = {}, before = "" }: { env?: Record<string, string>; before?: string } = {},
): {
  child: ChildProcess;
  ended: Promise<{ code: number | null; output: string }>;
  event: (test: (e: StageEvent) => boolean) => Promise<void>;
} {
  const dist = fileURLToPath(new URL("../dist/index.js", import.meta.url));
  if (!existsSync(dist)) throw new Error("packages/fetch is not built: run `pnpm turbo run build` first");
  const script = `
    ${before}
    const { fetchSnapshot } = await import(${JSON.stringify(`file://${dist}`)});
    const stop = new AbortController();
    process.on("SIGINT", () => stop.abort());
    const say = (o) => process.stdout.write(JSON.stringify(o) + "\\n");
    try {
      say({ result: await fetchSnapshot({ ...${JSON.stringify(options)}, signal: stop.signal, onEvent: (event) => say({ event }) }) });
    } catch (error) {
      say({ error: { code: error.code, exit: error.exit, message: error.message, hint: error.hint } });
      process.exitCode = error.exit ?? 1;
    }`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, ...env },
  });
  let output = "";
  const watchers: { test: (e: StageEvent) => boolean; resolve: () => void }[] = [];
  let seen = 0;
  const scan = () => {
    for (let end = output.indexOf("\n", seen); end >= 0; end = output.indexOf("\n", seen)) {
      const line = output.slice(seen, end);
      seen = end + 1;
      const { event } = JSON.parse(line || "{}") as { event?: StageEvent };
      if (!event) continue;
      for (const watcher of [...watchers]) if (watcher.test(event)) watcher.resolve();
    }
  };
  child.stdout!.on("data", (chunk: Buffer) => {
    output += chunk.toString("utf8");
    scan();
  });
  const ended = new Promise<{ code: number | null; output: string }>((resolve) =>
    child.once("close", (code) => resolve({ code, output })),
  );
  atEnd(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  return {
    child,
    ended,
    event: (test) =>
      Promise.race([
        new Promise<void>((resolve) => watchers.push({ test, resolve })),
        ended.then(({ output: all }) => {
          throw new Error(`the process ended before that: ${all.slice(-2000)}`);
        }),
      ]),
  };
}

/** The last line of a process's output, as what it said. */
export function said(output: string): {
  result?: FetchResult;
  error?: { code: string; exit: number; message: string };
} {
  return JSON.parse(output.trim().split("\n").at(-1)!);
}
