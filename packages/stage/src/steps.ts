import { setImmediate } from "node:timers/promises";
import { throwIfAborted } from "./errors.ts";

/** A computation that yields wherever it may pause, every millisecond or so, and returns its result. */
export type Steps<T> = Generator<void, T, void>;

/** Nothing of k3 may hold an event loop for more than 5 ms, and two slices with a read between fall into one of its turns. */
const SLICE_MS = 1;

/** Runs it to its end at once. Throws what the steps throw. */
export function runAtOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

/**
 * Runs it in slices, between which the event loop gets its turn: timers, requests, a signal handler. Throws what the steps
 * throw, and E_INTERRUPTED when the signal is aborted.
 */
export async function runInSlices<T>(steps: Steps<T>, signal?: AbortSignal): Promise<T> {
  for (let since = performance.now(); ; ) {
    const { done, value } = steps.next();
    if (done) return value;
    if (performance.now() - since < SLICE_MS) continue;
    await setImmediate();
    throwIfAborted(signal);
    since = performance.now();
  }
}
