import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdir, rename, stat, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { StageEvent } from "@k3/stage";
import { withTempDir } from "@k3/testkit";
import { expect, test } from "vitest";
import { run } from "../src/index.ts";
import { asidePath, removeLeftovers } from "../src/state-aside.ts";
import { packedMiniature } from "./miniature.ts";

const linux = process.platform === "linux";
const LONG_AGO = new Date(Date.now() - 2 * 3_600_000);

/** A process that is in the middle of a save, or was killed there. */
async function saving(path: string, how: "stays" | "killed") {
  const script = join(import.meta.dirname, "faults/saving.mjs");
  const child = spawn(process.execPath, [script, path, how], { stdio: ["pipe", "pipe", "inherit"] });
  if (how === "stays") await once(child.stdout, "data");
  else expect((await once(child, "exit"))[1]).toBe("SIGKILL");
  return child;
}

const only = async (dir: string): Promise<string> => {
  const names = await readdir(dir);
  expect(names).toHaveLength(1);
  return names[0]!;
};

test.skipIf(!linux)(
  `a run removes what a killed save left beside its state${linux ? "" : " (skipped: needs /proc)"}`,
  () =>
    withTempDir(async (dir) => {
      const state = join(dir, "state");
      await saving(state, "killed");
      const { size } = await stat(join(dir, await only(dir)));
      expect(size).toBeGreaterThan(2 << 20);
      const logs: string[] = [];
      await run({
        ...{ modelDir: (await packedMiniature()).dir, memory: 400e6, ids: [334, 412], generate: 1, state },
        onEvent: (event: StageEvent) => void (event.type === "log" && logs.push(event.message)),
      });
      expect(await readdir(dir)).toEqual(["state"]);
      expect(logs).toContainEqual(expect.stringMatching(/^removed 2\.\d+ MB that a save which was killed/));
    }),
);

test.skipIf(!linux)(
  `a save under way is left alone, and goes once its process has ended${linux ? "" : " (skipped: needs /proc)"}`,
  () =>
    withTempDir(async (dir) => {
      const state = join(dir, "state");
      const child = await saving(state, "stays");
      expect(await removeLeftovers(state)).toBe(0);
      await only(dir);
      const ended = once(child, "exit");
      child.stdin!.end();
      await ended;
      expect(await removeLeftovers(state)).toBeGreaterThan(2 << 20);
      expect(await readdir(dir)).toEqual([]);
    }),
);

test.skipIf(!linux)(
  `a number that was given to another process since does not protect it${linux ? "" : " (skipped: needs /proc)"}`,
  () =>
    withTempDir(async (dir) => {
      const state = join(dir, "state");
      await saving(state, "killed");
      const name = await only(dir);
      await rename(join(dir, name), join(dir, name.replace(/\.\d+-/, `.${process.pid}-`)));
      expect(await removeLeftovers(state)).toBeGreaterThan(0);
      expect(await readdir(dir)).toEqual([]);
    }),
);

test("what another host may still be writing stays until it is old", () =>
  withTempDir(async (dir) => {
    const state = join(dir, "state");
    // Of a number that no process has here: pid_max is at most 2^22.
    const foreign = [`${state}.4194999-7-0123456789ab.tmp`, `${state}.4194999.tmp`];
    for (const path of foreign) await writeFile(path, "12345");
    expect(await removeLeftovers(state)).toBe(0);
    for (const path of foreign) await utimes(path, LONG_AGO, LONG_AGO);
    expect(await removeLeftovers(state)).toBe(10);
    expect(await readdir(dir)).toEqual([]);
  }));

test("nothing else is touched, however old", () =>
  withTempDir(async (dir) => {
    const state = join(dir, "state");
    const mine = asidePath(state).slice(dir.length + 1);
    const others = ["state", "state.tmp", "state.mine.tmp", "state.1.tmp.kept", "state2.77.tmp", mine];
    for (const name of others) {
      await writeFile(join(dir, name), "");
      await utimes(join(dir, name), LONG_AGO, LONG_AGO);
    }
    expect(await removeLeftovers(state)).toBe(0);
    expect((await readdir(dir)).sort()).toEqual([...others].sort());
  }));
