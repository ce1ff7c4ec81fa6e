import { type ChildProcess, spawn } from "node:child_process";
import { chmod, cp, mkdir, open, stat, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { delimiter, join } from "node:path";
import { directoryFiles, type Hub, MINIATURE_TOOLS, makeMiniature, startHub } from "@k3/testkit";
import { BIN, k3Process } from "./harness.ts";

/** The commit that the pages name; the loopback Hub serves the miniature under it. */
const REVISION = "a590ce090cb049c93a33dfe8c208ec652aa20503";
const PORT = "8750";

/**
 * What every page is run against: the miniature, served as moonshotai/Kimi-K3 and as k3/miniature, and its trunk; and a
 * directory with `k3` in it, to be found by a shell.
 */
export class DocsBench {
  readonly root: string;
  readonly #hub: Hub;
  readonly #port: string;

  private constructor(root: string, hub: Hub, port: string) {
    this.root = root;
    this.#hub = hub;
    this.#port = port;
  }

  static async open(root: string): Promise<DocsBench> {
    const model = join(root, "model");
    await makeMiniature(model);
    await mkdir(join(root, "bin"));
    await writeFile(join(root, "bin/k3"), `#!/bin/sh\nexec '${process.execPath}' '${BIN}' "$@"\n`);
    await chmod(join(root, "bin/k3"), 0o755);
    const files = await directoryFiles(model);
    const repositories = ["moonshotai/Kimi-K3", "k3/miniature"].map((name) => ({
      name,
      files,
      commit: REVISION,
    }));
    const packed = await k3Process(["pack", "model", "trunk", "--quiet"], { cwd: root });
    if (packed.code !== 0) throw new Error(packed.stderr);
    return new DocsBench(root, await startHub({ repositories }), await freePort());
  }

  get env(): NodeJS.ProcessEnv {
    const { HF_TOKEN: _, ...env } = process.env;
    const path = `${join(this.root, "bin")}${delimiter}${env["PATH"]}`;
    return { ...env, PATH: path, HF_ENDPOINT: this.#hub.endpoint, HOME: this.root };
  }

  async close(): Promise<void> {
    await this.#hub.close();
  }

  /** As the page shows it, but for names of other people's disks, ports and ways to start k3. */
  here(text: string): string {
    return text
      .replace(/(npx --yes pnpm@\S+|pnpm) k3 /g, "k3 ")
      .replace(/(^|[\s='"])\/(data|fast)\b/g, "$1$2")
      .replaceAll(PORT, this.#port);
  }

  async prepare(dir: string, [what, name, ...rest]: readonly string[]): Promise<void> {
    switch (what) {
      case "model":
      case "trunk":
        await cp(join(this.root, what), join(dir, name!), { recursive: true });
        break;
      case "fetched": {
        const argv = ["fetch", "k3/miniature", "--revision", REVISION, "--dir", name!, "--quiet"];
        const { code, stderr } = await k3Process(argv, { cwd: dir, env: this.env });
        if (code !== 0) throw new Error(stderr);
        break;
      }
      case "tools":
        await writeFile(join(dir, name!), JSON.stringify(MINIATURE_TOOLS));
        break;
      case "file":
        await writeFile(join(dir, name!), rest.join(" "));
        break;
      case "damage":
        await invertMiddleByte(join(dir, name!));
        break;
      default:
        throw new Error(`no such directive: ${what}`);
    }
  }

  /** Runs a line of shell; `interruptAt`: sends SIGINT to it as soon as it prints this. */
  async run(
    command: string,
    dir: string,
    interruptAt?: string,
  ): Promise<{ code: number | null; stdout: string; stderr: string }> {
    const child = this.#spawn(`set -o pipefail; ${command}`, dir);
    const printed = { stdout: "", stderr: "" };
    const done = new Promise<{ code: number | null } & typeof printed>((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code) => resolve({ code, ...printed }));
    });
    let sent = false;
    for (const stream of ["stdout", "stderr"] as const)
      child[stream]!.on("data", (data: Buffer) => {
        printed[stream] += data;
        if (sent || interruptAt === undefined || !printed[stream].includes(interruptAt)) return;
        sent = true;
        process.kill(-child.pid!, "SIGINT");
      });
    return done;
  }

  /** Starts a command that serves until it is stopped, and waits for its first line. */
  async serve(command: string, dir: string): Promise<() => Promise<number | null>> {
    const child = this.#spawn(`exec ${command}`, dir);
    const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
    await Promise.race([
      new Promise<void>((ready) => child.stdout!.once("data", () => ready())),
      ended.then((code) => {
        throw new Error(`${command} ended with ${code}`);
      }),
    ]);
    return () => {
      child.kill("SIGINT");
      return ended;
    };
  }

  #spawn(command: string, cwd: string): ChildProcess {
    return spawn("bash", ["-c", command], {
      cwd,
      env: this.env,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
  }
}

async function invertMiddleByte(path: string): Promise<void> {
  const at = (await stat(path)).size >> 1;
  const file = await open(path, "r+");
  const byte = new Uint8Array(1);
  await file.read(byte, 0, 1, at);
  await file.write(Uint8Array.of(~byte[0]! & 0xff), 0, 1, at);
  await file.close();
}

function freePort(): Promise<string> {
  return new Promise((found, failed) => {
    const server = createServer();
    server.once("error", failed);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => found(String(port)));
    });
  });
}
