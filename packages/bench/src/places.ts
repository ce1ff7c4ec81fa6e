import { readdir, readFile, stat } from "node:fs/promises";
import { dirname, isAbsolute, join, relative, resolve } from "node:path";
import { byteArithmetic } from "@k3/checkpoint";
import { readSnapshot, STATE_DIRECTORY, selectedFiles } from "@k3/stage";
import { CODEC_RATIO } from "./figures.ts";
import { type PlanSource, RELEASED_PLAN_SOURCE } from "./plan.ts";

/** Where a part of the model is or will be, and what of it is yet to be written. */
export interface Place {
  holds: "checkpoint" | "trunk";
  /** As given; it need not exist. */
  dir: string;
  /** Files that are there. */
  files: string[];
  neededBytes: number;
}

/** What is yet to come of a checkpoint: an unfinished download counts with the blocks that it takes. */
export async function checkpointPlace(dir: string, source: PlanSource): Promise<Place> {
  const snapshot = await readSnapshot(dir).catch(() => undefined);
  const names = snapshot
    ? selectedFiles(snapshot).map(({ path }) => path)
    : (await listing(dir)).filter((name) => name.endsWith(".safetensors"));
  const files: string[] = [];
  let present = 0;
  for (const path of names.map((name) => join(dir, name))) {
    const found = await stat(path).catch(() => undefined);
    if (!found?.isFile()) continue;
    files.push(path);
    present += found.size;
  }
  const parts = join(dir, STATE_DIRECTORY, "parts");
  for (const name of await listing(parts)) present += await takenBytes(join(parts, name));
  const byHand = snapshot === undefined && source !== RELEASED_PLAN_SOURCE;
  const wanted = snapshot
    ? selectedFiles(snapshot).reduce((sum, { size }) => sum + size, 0)
    : source.downloadBytes;
  return { holds: "checkpoint", dir, files, neededBytes: byHand ? 0 : Math.max(0, wanted - present) };
}

/** What is yet to come of a packed trunk: nothing once it has its manifest, which is put into place last. */
export async function trunkPlace(dir: string, source: PlanSource): Promise<Place> {
  const names = (await listing(dir)).filter((name) => /^trunk-.*\.bin$/.test(name));
  const files = names.map((name) => join(dir, name));
  if (await trunkCodec(dir)) return { holds: "trunk", dir, files, neededBytes: 0 };
  const sizes = byteArithmetic(source.config);
  const wanted = Math.round((sizes.trunkBytes + sizes.lmHeadBytes) * CODEC_RATIO.bf16);
  const present = await takenBytes(join(dir, "trunk.part"));
  return { holds: "trunk", dir, files, neededBytes: Math.max(0, wanted - present) };
}

/** The codec of the trunk in `dir`; undefined where no finished one is. */
export async function trunkCodec(dir: string): Promise<"bf16" | "none" | undefined> {
  const text = await readFile(join(dir, "trunk.json"), "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  return /"codec": ?"none"/.test(text) ? "none" : "bf16";
}

/**
 * Where a trunk goes if nobody says: beside the checkpoint, or into it where the checkpoint's directory is the root of
 * a disk of its own, for beside that is another disk. One that is there already is found in both.
 */
export async function usualTrunkDirectory(dir: string): Promise<string> {
  const path = resolve(dir);
  const [beside, inside] = [`${path}-trunk`, join(path, "trunk")];
  for (const found of [beside, inside]) if (await trunkCodec(found)) return asGiven(dir, found);
  const [here, above] = await Promise.all([path, dirname(path)].map((at) => nearestExisting(at).then(stat)));
  const alone = path === dirname(path) || here!.dev !== above!.dev;
  return asGiven(dir, alone ? inside : beside);
}

/** A path as the user would type it: relative if the directory was given so. */
const asGiven = (dir: string, path: string) => (isAbsolute(dir) ? path : relative(".", path));

/** The path itself if it is a directory, else the nearest one above it. */
export async function nearestExisting(dir: string): Promise<string> {
  let path = resolve(dir);
  while (!(await stat(path).catch(() => undefined))?.isDirectory() && path !== dirname(path))
    path = dirname(path);
  return path;
}

const listing = (dir: string) => readdir(dir).catch(() => [] as string[]);

/** What a file takes of its disk; holes take nothing (stat(2) counts in blocks of 512 bytes). */
const takenBytes = async (path: string) => ((await stat(path).catch(() => undefined))?.blocks ?? 0) * 512;
