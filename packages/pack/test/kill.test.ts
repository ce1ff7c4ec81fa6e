// kill -9 at random moments always ends in the identical trunk. K3_NIGHTLY=1 kills 200 times instead of 20.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { openTrunk } from "@k3/trunk";
import { expect, it } from "vitest";
import { pack } from "../src/index.ts";
import { temporaryDirectory, trunkDigest, writeCheckpoint } from "./fixture.ts";

const KILLS = process.env["K3_NIGHTLY"] === "1" ? 200 : 20;
const SEED = Number(process.env["K3_SEED"] ?? 1);

/** Runs a pack in a process of its own; resolves when it says that it begins. */
async function start(modelDir: string, trunkDir: string, threads: number) {
  const index = new URL("../dist/index.js", import.meta.url).href;
  const script = `
    const { pack } = await import(${JSON.stringify(index)});
    console.log("begin");
    const options = ${JSON.stringify({ modelDir, trunkDir, threads, blockBytes: 8192, commitMs: 2 })};
    console.log((await pack(options)).resumed_blocks);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let out = "";
  child.stdout.on("data", (data) => {
    out += data;
  });
  const closed = once(child, "close");
  // A child that cannot even begin is seen by its exit code.
  await Promise.race([once(child.stdout, "data"), closed]);
  return { child, closed, output: () => out };
}

it(`killed ${KILLS} times at random moments, packing ends in the identical trunk`, {
  timeout: 1_800_000,
}, async () => {
  const root = await temporaryDirectory();
  const modelDir = join(root, "model");
  const straight = join(root, "straight");
  const trunkDir = join(root, "trunk");
  await writeCheckpoint(modelDir, { config: { vocab_size: 700_000 } });
  await pack({ modelDir, trunkDir: straight, blockBytes: 8192 });
  const expected = await trunkDigest(straight);
  // An older trunk is in the directory all the time, until a pack of the other codec completes.
  await pack({ modelDir, trunkDir, codec: "none", blockBytes: 8192 });
  const older = (await openTrunk(trunkDir)).manifest.id;

  let state = SEED >>> 0;
  const random = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  let kills = 0;
  let resumable = 0;
  let resumed = 0;
  let completed = 0;
  // A whole pack in a process of its own, to know how long the moments reach; then the older trunk again.
  const timed = performance.now();
  await (await start(modelDir, trunkDir, 2)).closed;
  let longest = performance.now() - timed;
  expect(await trunkDigest(trunkDir)).toEqual(expected);
  await pack({ modelDir, trunkDir, codec: "none", blockBytes: 8192 });
  while (kills < KILLS) {
    const begun = performance.now();
    const run = await start(modelDir, trunkDir, 1 + Math.floor(random() * 3));
    const ended = run.closed.then(() => "ended" as const);
    if ((await Promise.race([ended, sleep(random() * longest).then(() => "alive" as const)])) === "alive") {
      run.child.kill("SIGKILL");
      await run.closed;
      if (run.child.signalCode === "SIGKILL") kills++;
      const journal = await readFile(join(trunkDir, "trunk.journal"), "utf8").catch(() => "");
      if (journal.split("\n").length > 2) resumable++;
    }
    if (run.child.exitCode === 0) {
      // It finished by itself: its trunk is the one. Begin the next round with the older trunk again.
      expect(await trunkDigest(trunkDir)).toEqual(expected);
      completed++;
      longest = Math.min(longest, performance.now() - begun); // the machine may have become quieter
      if (Number(run.output().split("\n")[1]) > 0) resumed++;
      await pack({ modelDir, trunkDir, codec: "none", blockBytes: 8192 });
    } else {
      expect(run.child.signalCode).toBe("SIGKILL");
      // Whatever was cut short, a trunk can be opened: the older one, or the new one if it was just published.
      const { manifest } = await openTrunk(trunkDir);
      // (Beside it the data file of the other may not be removed yet.)
      if (manifest.id !== older) expect(await trunkDigest(trunkDir)).toMatchObject(expected);
    }
  }
  const last = await pack({ modelDir, trunkDir, blockBytes: 8192, check: true });
  expect(last.blocks).toBeGreaterThan(5000);
  expect(await trunkDigest(trunkDir)).toEqual(expected);
  console.log(
    `${kills} kills, ${resumable} of them with blocks to keep; ${completed} runs completed, ${resumed} of them resumed`,
  );
});
