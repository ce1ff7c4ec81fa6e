import { fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import { type ErrorCode, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import type { ChildMessage } from "./measured-child.ts";
import type { MeasuredRun, RunRequest } from "./run-protocol.ts";

// Built, also when this module is loaded from its source by a test.
const CHILD = new URL("../dist/measured-child.js", import.meta.url);

/** Measures one run in a process of its own. Throws what the run threw, or E_DEFECT when the process died. */
export async function measureRun(
  request: RunRequest,
  { signal, onEvent }: StageOptions,
): Promise<MeasuredRun> {
  throwIfAborted(signal);
  const child = fork(fileURLToPath(CHILD), {
    stdio: ["ignore", "inherit", "inherit", "ipc"],
    // A terminal's Ctrl-C goes to this process, which then stops the child itself.
    detached: true,
    execArgv: [],
  });
  const stop = () => child.kill("SIGKILL");
  signal?.addEventListener("abort", stop, { once: true });
  const exitWithParent = () => child.kill("SIGKILL");
  process.once("exit", exitWithParent);
  try {
    return await new Promise<MeasuredRun>((done, failed) => {
      child.on("message", (message: ChildMessage) => {
        if (message.kind === "event") onEvent?.(message.event);
        else if (message.kind === "result") done(message.run);
        else
          failed(
            new StageError(
              message.code as ErrorCode,
              message.message,
              message.hint ? { hint: message.hint } : {},
            ),
          );
      });
      child.once("error", failed);
      child.once("close", (code, killed) => {
        failed(new StageError("E_DEFECT", `the measured process ended with ${killed ?? code} and no result`));
      });
      child.send(request);
    });
  } catch (error) {
    throwIfAborted(signal);
    throw error;
  } finally {
    signal?.removeEventListener("abort", stop);
    process.removeListener("exit", exitWithParent);
  }
}
