import { createInterface } from "node:readline";
import type { ReadStream } from "node:tty";

/** Lines that come so close after each other were pasted. */
const PASTE_MS = 30;
const CTRL_C = "\x03";

/** Lines from a terminal, with editing and history, and Ctrl-C in between. */
export class Prompt {
  readonly #input: ReadStream;
  readonly #output: NodeJS.WritableStream;
  /** Newest first. */
  #history: string[];
  /** Typed while the model answered. */
  #ahead = "";

  constructor(input: ReadStream, output: NodeJS.WritableStream, history: readonly string[]) {
    this.#input = input;
    this.#output = output;
    this.#history = history.toReversed();
  }

  /** The next line, or several pasted at once; null for Ctrl-C, Ctrl-D and an aborted signal. */
  async ask(prompt: string, signal: AbortSignal): Promise<string | null> {
    if (signal.aborted) return null;
    const lines = createInterface({
      input: this.#input,
      output: this.#output,
      prompt,
      history: this.#history,
      historySize: 1000,
      removeHistoryDuplicates: true,
    });
    const close = () => lines.close();
    lines.on("history", (history) => {
      this.#history = history;
    });
    lines.on("SIGINT", close);
    signal.addEventListener("abort", close, { once: true });
    try {
      return await new Promise<string | null>((resolve) => {
        const read: string[] = [];
        let quiet: NodeJS.Timeout | undefined;
        lines.on("line", (line) => {
          read.push(line);
          clearTimeout(quiet);
          quiet = setTimeout(() => {
            if (lines.line !== "" && read.length > 1) read.push(lines.line);
            else this.#ahead = lines.line;
            resolve(read.join("\n"));
          }, PASTE_MS);
        });
        lines.on("close", () => {
          clearTimeout(quiet);
          resolve(read.length > 0 ? read.join("\n") : null);
        });
        lines.prompt();
        if (this.#ahead !== "") lines.write(this.#ahead);
        this.#ahead = "";
      });
    } finally {
      signal.removeEventListener("abort", close);
      lines.close();
    }
  }

  /** Watches for Ctrl-C until the returned function is called; what else is typed meanwhile begins the next line. */
  watch(onInterrupt: () => void): () => void {
    const onData = (data: Buffer | string): void => {
      const typed = data.toString();
      if (typed.includes(CTRL_C)) onInterrupt();
      this.#ahead += typed.replaceAll(/\x1b\[[\d;]*[A-Za-z~]|[\x00-\x1f\x7f]/g, "");
    };
    this.#input.setRawMode(true);
    this.#input.on("data", onData);
    this.#input.resume();
    return () => {
      this.#input.off("data", onData);
      this.#input.setRawMode(false);
      this.#input.pause();
    };
  }
}
