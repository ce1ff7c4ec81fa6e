import type { Readable } from "node:stream";
import type { Output } from "./output.ts";

/** What a command works with, beside its arguments. */
export interface Context {
  output: Output;
  /** Aborted by SIGINT and SIGTERM. */
  signal: AbortSignal;
  stdin: Readable & { isTTY?: boolean };
  /** Sets the exit code of a command that ends well but found something (verify: 3). */
  setExit(code: number): void;
}
