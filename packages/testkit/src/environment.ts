import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Something that some tests need and that may be absent: its path, or why tests without it are skipped. */
export type Needed = { path: string; skip: undefined } | { path: undefined; skip: string };

const absent = (skip: string): Needed => ({ path: undefined, skip });

/** The directory of recordings named by K3_SHARED. */
export function sharedDir(): Needed {
  const path = process.env["K3_SHARED"];
  if (!path) return absent("K3_SHARED is not set: the recordings are not here");
  if (!existsSync(join(path, "data"))) return absent(`K3_SHARED=${path} has no data directory`);
  return { path, skip: undefined };
}

/** A Python with NumPy, named by K3_PYTHON. */
export function python(): Needed {
  const path = process.env["K3_PYTHON"];
  if (!path) return absent("K3_PYTHON is not set: no Python with NumPy");
  try {
    execFileSync(path, ["-c", "import numpy"], { stdio: "ignore" });
  } catch {
    return absent(`K3_PYTHON=${path} cannot import numpy`);
  }
  return { path, skip: undefined };
}

/** A test title that says why the test is skipped: `title("oracle", sharedDir(), python())`. */
export function title(name: string, ...needs: Needed[]): string {
  const reasons = needs.flatMap(({ skip }) => (skip === undefined ? [] : [skip]));
  return reasons.length === 0 ? name : `${name} (skipped: ${reasons.join("; ")})`;
}

/** Runs `use` with a fresh directory, which is removed afterwards whatever happens. */
export async function withTempDir<T>(use: (dir: string) => Promise<T>, prefix = "k3-test-"): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), prefix));
  try {
    return await use(dir);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}
