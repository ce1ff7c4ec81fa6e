import { Random, syntheticFile } from "@k3/testkit";
import { describe, expect, it } from "vitest";
import {
  expectComplete,
  KIB,
  MIB,
  run,
  sampleFiles,
  serve,
  spawnRun,
  temporary,
  testOptions,
} from "./support.ts";

/** Seconds of chaos: a minute in the normal suite, as long as one likes by hand (K3_CHAOS_SECONDS). */
const SECONDS = Number(process.env["K3_CHAOS_SECONDS"] ?? (process.env["K3_NIGHTLY"] ? 300 : 60));
const SEED = Number(process.env["K3_CHAOS_SEED"] ?? 20260301);

/** Quotas that no length of chaos exhausts: the Hub's own end a run that asks 500 times in five minutes, as they should. */
const AMPLE = { q: 1_000_000_000, w: 300 };

type Hub = Awaited<ReturnType<typeof serve>>;

/** Every fault from which a download must recover by itself, with parameters drawn anew each time. */
const FAULTS: ((r: Random) => Parameters<Hub["setFaults"]>[0])[] = [
  (r) => ({ cutAfter: { bytes: 1 + r.below(400_000), count: 1 + r.below(8), reset: r.below(2) === 0 } }),
  (r) => ({ stallAt: { bytes: r.below(3 * MIB), count: 1 + r.below(2) } }),
  (r) => ({ ttlMs: 200 + r.below(1500) }),
  (r) => ({ ignoreRange: { count: 1 + r.below(3), skip: r.below(5) } }),
  (r) => ({ shiftRange: { count: 1 + r.below(3), bytes: 1 + r.below(5000) } }),
  (r) => ({ rangeAs200: { count: 1 + r.below(5) } }),
  () => ({ gzipWhenAsked: true }),
  (r) => ({ wrongTotal: { count: 1 + r.below(3), bytes: 1 + r.below(10) } }),
  (r) => ({
    wrongLength: { count: 1 + r.below(3), bytes: r.below(2) === 0 ? 1 + r.below(5000) : -1 - r.below(5000) },
  }),
  (r) => ({ etagChangesMidFile: { count: 1 + r.below(3) } }),
  (r) => ({ flipByteAt: { bytes: r.below(2 * MIB), count: 1, path: `model-0000${1 + r.below(3)}` } }),
  (r) => ({ spurious416: 1 + r.below(3) }),
  (r) => ({ htmlInstead: { count: 1 + r.below(3), skip: r.below(10) } }),
  (r) => ({ hub429: { r: 0, t: r.below(2), count: 1 + r.below(2), skip: r.below(4) } }),
  (r) => ({ hub429: { r: 9, t: 60, retryAfter: r.below(2), count: 1 } }),
  (r) => ({ hub503: 1 + r.below(4) }),
  (r) => ({ cdn503: 1 + r.below(12) }),
  (r) => ({ cdn400: { count: 1 + r.below(2), skip: r.below(8) } }),
  () => ({ page2_500: 1 }),
  () => ({ missingLinked: true }),
  (r) => ({ bps: MIB * (2 + r.below(10)) }),
];

describe(`chaos (${SECONDS} s from seed ${SEED})`, () => {
  it("whatever faults come together, and whenever the process is killed or interrupted, the files end identical", {
    timeout: (SECONDS + 240) * 1000,
  }, async () => {
    const files = [...sampleFiles(2 * MIB, 3), syntheticFile("big.safetensors", 5 * MIB + 77, { seed: 8 })];
    const hub = await serve(files, { pageSize: 4, limits: { api: AMPLE, resolvers: AMPLE } });
    const until = performance.now() + SECONDS * 1000;
    const struck = new Set<string>();
    let rounds = 0;
    for (; performance.now() < until; rounds++) {
      const random = new Random(SEED, `round ${rounds}`);
      const what = `round ${rounds} of seed ${SEED}`;
      const dir = await temporary();
      hub.clearFaults();
      hub.clearLog();
      const faults = Object.assign(
        {},
        ...Array.from({ length: 1 + random.below(5) }, () => FAULTS[random.below(FAULTS.length)]!(random)),
      );
      hub.setFaults(faults);
      const options = {
        concurrency: 1 + random.below(8),
        internals: { segmentBytes: [64, 256, 1024][random.below(3)]! * KIB, timing: { attempts: 12 } },
      };
      for (let kills = random.below(3); kills > 0; kills--) {
        const child = spawnRun(testOptions(hub, dir, options));
        const at = random.below(11 * MIB);
        await Promise.race([
          child.event((e) => e.type === "progress" && e.phase === "downloading" && e.done >= at),
          child.ended,
        ]).catch(() => undefined);
        child.child.kill(random.below(3) === 0 ? "SIGINT" : "SIGKILL");
        await child.ended;
      }
      const { result, messages } = await run(hub, dir, options).catch((error: unknown) => {
        throw new Error(`${what}, faults ${JSON.stringify(faults)}`, { cause: error });
      });
      expect(result, what).toMatchObject({ files: files.length, verified: true });
      // However it ended, what the journals vouch for is on the disk.
      expect(messages.join("\n"), what).not.toContain("damaged on the disk");
      await expectComplete(dir, files);
      for (const name of Object.keys(faults)) if (hub.struck(name as never) > 0) struck.add(name);
    }
    console.log(`chaos: ${rounds} rounds, faults that struck: ${[...struck].sort().join(" ")}`);
    expect(rounds).toBeGreaterThan(0);
  });
});
