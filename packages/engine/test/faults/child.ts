import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";

const execute = promisify(execFile);

export interface ChildResult {
  generated?: number[];
  stats?: { retries: number; bufferedFiles: number };
  code?: string;
  exit?: number;
  message?: string;
  hint?: string;
}

/** Compiles bad-disk.cc; gives an environment in which it stands before the system's calls. */
export async function badDisk(name: string): Promise<NodeJS.ProcessEnv> {
  const library = join(process.env["K3_ENGINE_TEST_DIR"]!, `${name}.so`);
  const source = join(import.meta.dirname, "bad-disk.cc");
  const flags = ["-std=c++20", "-O1", "-shared", "-fPIC"];
  await execute(process.env["CXX"] ?? "c++", [...flags, source, "-o", library, "-ldl"]);
  // Behind what is there already: a sanitizer's runtime must come first.
  return { ...process.env, LD_PRELOAD: [process.env["LD_PRELOAD"], library].filter(Boolean).join(" ") };
}

export const CHILD = join(import.meta.dirname, "child.mjs");

/** One run in a process of its own: see child.mjs. */
export async function child(env: NodeJS.ProcessEnv, request: Record<string, unknown>): Promise<ChildResult> {
  const { stdout } = await execute(process.execPath, [CHILD, JSON.stringify(request)], { env });
  return JSON.parse(stdout.trim().split("\n").at(-1)!) as ChildResult;
}
