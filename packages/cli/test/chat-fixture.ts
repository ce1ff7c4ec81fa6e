import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MINIATURE_CONVERSATIONS, makeMiniature } from "@k3/testkit";
import { afterAll, beforeAll } from "vitest";
import { BIN } from "./harness.ts";

/** A directory with the miniature in `model`, for all tests of a file. */
export function workplace(): { dir: string; model: string; place(): string } {
  const all = { dir: "", model: "", place: () => join(all.dir, `conversation-${++places}`) };
  let places = 0;
  beforeAll(async () => {
    all.dir = await mkdtemp(join(tmpdir(), "k3-chat-"));
    all.model = join(all.dir, "model");
    await makeMiniature(all.model);
  }, 300_000);
  afterAll(() => rm(all.dir, { recursive: true, force: true }));
  return all;
}

/** The texts that the miniature was made to know. */
export const known = (name: "thinking" | "direct" | "tools") =>
  MINIATURE_CONVERSATIONS.find((one) => one.name === name)!.messages;

/** Kept small: several of these run beside other tests. */
export const SMALL = ["--memory", "400MB", "--threads", "1"];

export const script = {
  skip:
    spawnSync("script", ["--version"]).error === undefined ? undefined : "there is no `script` of util-linux",
};

/** `k3` on a terminal of its own. */
export class Pty {
  readonly #child: ChildProcessWithoutNullStreams;
  readonly exited: Promise<number | null>;
  /** Everything that appeared. */
  shown = "";
  #seen = 0;

  constructor(argv: readonly string[]) {
    const quoted = [process.execPath, BIN, ...argv]
      .map((part) => `'${part.replaceAll("'", "'\\''")}'`)
      .join(" ");
    // `-e` passes the exit code on; nothing is logged.
    this.#child = spawn("script", ["-qfec", `stty cols 100 rows 30; exec ${quoted}`, "/dev/null"]);
    this.#child.stdout.on("data", (data: Buffer) => {
      this.shown += data;
    });
    this.exited = new Promise((resolve) => this.#child.once("close", resolve));
  }

  /** Waits for a text after the one waited for last. */
  async until(text: string | RegExp): Promise<void> {
    const deadline = Date.now() + 60_000;
    for (;;) {
      const rest = this.shown.slice(this.#seen);
      const found =
        typeof text === "string" ? (rest.includes(text) ? text : undefined) : text.exec(rest)?.[0];
      if (found !== undefined) {
        this.#seen += rest.indexOf(found) + found.length;
        return;
      }
      if (Date.now() > deadline) throw new Error(`no ${text} in ${JSON.stringify(this.shown)}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Types key by key, as people do: many keys at once would be taken for pasted text. */
  async type(...keys: string[]): Promise<void> {
    for (const key of keys) {
      this.#child.stdin.write(key);
      await new Promise((resolve) => setTimeout(resolve, 60));
    }
  }

  kill(): void {
    this.#child.kill("SIGKILL");
  }
}
