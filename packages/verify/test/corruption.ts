// A way to damage a checkpoint, and what must be found.
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import type { VerifyOptions } from "../src/types.ts";
import { outcome } from "./model.ts";

export interface Corruption {
  what: string;
  damage: (dir: string) => Promise<unknown>;
  /** What is expected: [path, kind, part of "expected ... found ..."]. */
  faults: [string, string, RegExp][];
  exit?: number;
  options?: Partial<VerifyOptions>;
}

/** Damages the directory, verifies it, and compares all faults, in their order. */
export async function check(
  dir: string,
  { damage, faults, exit = 3, options = {} }: Corruption,
  level?: "structure",
): Promise<void> {
  await damage(dir);
  if (level) await rm(join(dir, ".cache"), { recursive: true });
  const found = await outcome({ dir, ...(level ? { level } : {}), ...options });
  expect(found.faults.map(({ path, kind }) => [path, kind])).toEqual(
    faults.map(([path, kind]) => [path, kind]),
  );
  for (const [i, [, , message]] of faults.entries()) {
    expect(found.faults[i]!.hint).toMatch(/\w/);
    expect(`expected ${found.faults[i]!.expected}, found ${found.faults[i]!.found}`).toMatch(message);
  }
  expect(found.exit).toBe(exit);
  expect(found.result).toMatchObject({ ok: false });
}
