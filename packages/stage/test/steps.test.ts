import { describe, expect, test } from "vitest";
import { runAtOnce, runInSlices, type Steps } from "../src/index.ts";

/** Busy for a tenth of a millisecond a step. */
function* busy(steps: number): Steps<number> {
  for (let step = 0; step < steps; step++) {
    for (const until = performance.now() + 0.1; performance.now() < until; );
    yield;
  }
  return steps;
}

function* failing(): Steps<never> {
  yield;
  throw new RangeError("no");
}

describe("a computation in steps", () => {
  test("gives its result at once and in slices", async () => {
    expect(runAtOnce(busy(3))).toBe(3);
    expect(await runInSlices(busy(3))).toBe(3);
  });

  test("lets others have their turn between slices", async () => {
    let turns = 0;
    const timer = setInterval(() => turns++, 1);
    await runInSlices(busy(1000));
    clearInterval(timer);
    expect(turns).toBeGreaterThan(5);
  });

  test("throws what its steps throw", async () => {
    expect(() => runAtOnce(failing())).toThrow(RangeError);
    await expect(runInSlices(failing())).rejects.toThrow(RangeError);
  });

  test("ends with its signal", async () => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 2);
    await expect(runInSlices(busy(100_000), controller.signal)).rejects.toThrow(
      expect.objectContaining({ code: "E_INTERRUPTED" }),
    );
  });
});
