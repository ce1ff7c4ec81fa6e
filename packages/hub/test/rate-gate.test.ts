import { expect, test } from "vitest";
import { RateGate } from "../src/rate-gate.ts";
import { HUB_TIMING } from "../src/settings.ts";

const never = new AbortController().signal;
const policy = '"fixed window";"api";q=100;w=300';

/** Milliseconds that so many requests, all wanted at once, are spread over. */
async function spread(gate: RateGate, requests: number): Promise<number> {
  const started = performance.now();
  await Promise.all(Array.from({ length: requests }, () => gate.pass("api", never)));
  return performance.now() - started;
}

test("when less than a tenth of a quota is left, requests are spread over the rest of its window", async () => {
  const gate = new RateGate(HUB_TIMING, () => undefined);
  gate.observe("api", 200, { ratelimit: '"api";r=5;t=1', "ratelimit-policy": policy });
  // Five requests in one second: one each 200 ms, the first at once.
  expect(await spread(gate, 4)).toBeGreaterThanOrEqual(590);
  // A new window takes the spacing back: a thousand at once are then no matter.
  gate.observe("api", 200, { ratelimit: '"api";r=99;t=300', "ratelimit-policy": policy });
  expect(await spread(gate, 1000)).toBeLessThan(100_000);
});

test("nobody waits beyond the window, however many wait for the last of a quota", async () => {
  const gate = new RateGate({ ...HUB_TIMING, ratePad: 1 }, () => undefined);
  gate.observe("api", 200, { ratelimit: '"api";r=1;t=1', "ratelimit-policy": policy });
  // One at once, all others when the quota is full again: not a second apart, which would take a minute.
  expect(await spread(gate, 60)).toBeLessThan(30_000);
});

test("an empty quota closes its bucket alone, until its window ends", async () => {
  const closed: string[] = [];
  const gate = new RateGate({ ...HUB_TIMING, ratePad: 1 }, (bucket) => closed.push(bucket));
  expect(gate.observe("api", 429, { ratelimit: '"api";r=0;t=1', "ratelimit-policy": policy })).toBe(true);
  expect(closed).toEqual(["api"]);
  const started = performance.now();
  await gate.pass("resolvers", never);
  await gate.pass("api", never);
  expect(performance.now() - started).toBeGreaterThanOrEqual(990);
});
