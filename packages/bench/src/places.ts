import { readdir, readFile, stat } from "node:fs/promises";
import { dirname, isAbsolute, join, relative, resolve } from "node:path";
import { byteArithmetic } from "@k3/checkpoint";
import { nearestDirectory, readSnapshot, STATE_DIRECTORY, selectedFiles } from "@k3/stage";
import { z } from "zod";
import { CODEC_RATIO } from "./figures.ts";
import type { PlanSource } from "./plan.ts";

/** Where a part of the model is or will be, and what of it is yet to be written. */
export interface Place {
  holds: "checkpoint" | "trunk";
  /** As given; it need not exist. */
  dir: string;
  /** Files that are there. */
  files: string[];
  neededBytes: number;
  /** Of a finished trunk. */
  codec?: "bf16" | "none";
  /** What is wrong with what is there, and what to do; undefined if nothing is, as far as a look tells. */
  fault?: { message: string; hint: string } | undefined;
}

/** What is yet to come of a checkpoint; an unfinished download counts with the blocks that it takes. */
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
  const byHand = snapshot === undefined && source.dir !== null;
  const wanted = snapshot
    ? selectedFiles(snapshot).reduce((sum, { size }) => sum + size, 0)
    : source.downloadBytes;
  return { holds: "checkpoint", dir, files, neededBytes: byHand ? 0 : Math.max(0, wanted - present) };
}

/** What is yet to come of a packed trunk: nothing once it has its manifest, which is put into place last. */
export async function trunkPlace(dir: string, source: PlanSource): Promise<Place> {
  const names = (await listing(dir)).filter((name) => /^trunk-.*\.bin$/.test(name));
  const files = names.map((name) => join(dir, name));
  const packed = await packedTrunk(dir);
  if (packed) return { holds: "trunk", dir, files, neededBytes: 0, ...packed };
  const sizes = byteArithmetic(source.config);
  // Of a model whose config is not known yet, no more than it has itself.
  const raw = Math.min(sizes.trunkBytes + sizes.lmHeadBytes, source.downloadBytes);
  const wanted = Math.round(raw * CODEC_RATIO.bf16);
  const present = await takenBytes(join(dir, "trunk.part"));
  return { holds: "trunk", dir, files, neededBytes: Math.max(0, wanted - present) };
}

const manifest = z.object({
  format: z.literal("k3-trunk"),
  codec: z.enum(["bf16", "none"]),
  data: z.object({ file: z.string(), bytes: z.number() }),
});

/** The finished trunk in `dir`, as a look at its manifest and the size of its data tells; undefined where none is. */
async function packedTrunk(
  dir: string,
): Promise<{ codec: "bf16" | "none"; fault: Place["fault"] } | undefined> {
  const path = join(dir, "trunk.json");
  const text = await readFile(path, "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  const hint = `remove ${path} and pack again`;
  try {
    const { codec, data } = manifest.parse(JSON.parse(text));
    const bytes = (await stat(join(dir, data.file)).catch(() => undefined))?.size ?? 0;
    const message = `${join(dir, data.file)} has ${bytes} bytes where ${path} says ${data.bytes}`;
    return { codec, fault: bytes === data.bytes ? undefined : { message, hint } };
  } catch {
    return { codec: "bf16", fault: { message: `${path} is not a trunk manifest`, hint } };
  }
}

/**
 * Where a trunk goes if nobody says: beside the checkpoint, or into it where the checkpoint's directory is the root of
 * a disk of its own, for beside that is another disk. One that is there already is found in both.
 */
export async function usualTrunkDirectory(dir: string): Promise<string> {
  const path = resolve(dir);
  const [beside, inside] = [`${path}-trunk`, join(path, "trunk")];
  // The last is where a pipeline has its own.
  for (const found of [beside, inside, join(dirname(path), "trunk")])
    if (await packedTrunk(found)) return asGiven(dir, found);
  const [here, above] = await Promise.all([path, dirname(path)].map((at) => nearestDirectory(at).then(stat)));
  const alone = path === dirname(path) || here!.dev !== above!.dev;
  return asGiven(dir, alone ? inside : beside);
}

/** A path as the user would type it: relative if the directory was given so, and never like a flag. */
const asGiven = (dir: string, path: string) =>
  isAbsolute(dir) ? path : relative(".", path).replace(/^-/, "./-");

const listing = (dir: string) => readdir(dir).catch(() => [] as string[]);

/** What a file takes of its disk; holes take nothing (stat(2) counts in blocks of 512 bytes). */
const takenBytes = async (path: string) => ((await stat(path).catch(() => undefined))?.blocks ?? 0) * 512;
