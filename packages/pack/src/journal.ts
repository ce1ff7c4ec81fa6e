import { unlink } from "node:fs/promises";
import { join } from "node:path";
import { Journal, StageError } from "@k3/stage";
import { alignUp, type BlockLayout, type SourceBinding, sourceDifferences } from "@k3/trunk";
import { z } from "zod";
import type { PackPlan } from "./plan.ts";

export const JOURNAL_FILE = "trunk.journal";

const startSchema = z.strictObject({
  type: z.literal("start"),
  format: z.literal("k3-pack"),
  version: z.literal(1),
  codec: z.enum(["bf16", "none"]),
  blockBytes: z.number(),
  layoutSha256: z.string(),
  source: z.strictObject({
    revision: z.string().nullable(),
    configSha256: z.string(),
    shards: z.array(z.strictObject({ file: z.string(), size: z.number(), headerSha256: z.string() })),
  }),
  /** Modification times of the shards, nanoseconds since the epoch. */
  mtimesNs: z.array(z.string()),
});
type Start = z.infer<typeof startSchema>;

const blocksSchema = z.strictObject({
  type: z.literal("blocks"),
  first: z.int().nonnegative(),
  /** Base64 of four little-endian u32 a block: stored bytes, CRC-32 of stored and of raw bytes, codec. */
  results: z.string(),
});

/** Blocks that are written for good, in the order of the file. */
export class PackJournal {
  readonly #journal: Journal;
  readonly #layout: BlockLayout;
  /** Four numbers a block, as BlockJob.results gives them; valid for the first `blocks`. */
  readonly results: Uint32Array;
  blocks = 0;
  /** Where the next block goes in the data file. */
  offset = 0;

  private constructor(journal: Journal, layout: BlockLayout) {
    this.#journal = journal;
    this.#layout = layout;
    this.results = new Uint32Array(4 * layout.blocks);
  }

  /**
   * Opens or begins the journal of a directory. Throws E_DATA, naming what changed, when it belongs to another source,
   * and E_USAGE when it belongs to another codec.
   */
  static async open(dir: string, plan: PackPlan): Promise<PackJournal> {
    const path = join(dir, JOURNAL_FILE);
    const { journal, records } = await Journal.open(path);
    try {
      const self = new PackJournal(journal, plan.layout);
      const start = startOf(plan);
      if (records.length === 0) {
        await journal.append(start);
        return self;
      }
      requireSameStart(startSchema.safeParse(records[0]).data, start, path);
      for (const record of records.slice(1)) self.#restore(record, path);
      return self;
    } catch (error) {
      await journal.close();
      throw error;
    }
  }

  /** Records blocks `this.blocks` .. `to - 1`, which the caller has made durable. */
  async append(results: Uint32Array): Promise<void> {
    const bytes = Buffer.from(results.buffer, results.byteOffset, results.byteLength);
    await this.#journal.append({ type: "blocks", first: this.blocks, results: bytes.toString("base64") });
    this.#take(results);
  }

  close(): Promise<void> {
    return this.#journal.close();
  }

  async remove(): Promise<void> {
    await this.#journal.close();
    await unlink(this.#journal.path);
  }

  #restore(record: unknown, path: string): void {
    const { data } = blocksSchema.safeParse(record);
    const bytes = data ? Buffer.from(data.results, "base64") : Buffer.alloc(0);
    const count = bytes.length / 16;
    const results = new Uint32Array(4 * Math.floor(count));
    for (let i = 0; i < results.length; i++) results[i] = bytes.readUInt32LE(4 * i);
    const fits = data?.first === this.blocks && this.blocks + count <= this.#layout.blocks;
    if (!fits || !Number.isInteger(count) || count === 0 || !this.#areSane(results)) {
      throw new StageError("E_DATA", `${path}: a record that cannot be one of this trunk`, {
        hint: `remove ${path} to begin again`,
      });
    }
    this.#take(results);
  }

  #areSane(results: Uint32Array): boolean {
    for (let i = 0; i < results.length / 4; i++) {
      const raw = this.#layout.rawBytes[this.blocks + i]!;
      const [stored, codec] = [results[4 * i]!, results[4 * i + 3]!];
      if (codec === 0 ? stored !== raw : codec !== 1 || stored === 0 || stored >= raw) return false;
    }
    return true;
  }

  #take(results: Uint32Array): void {
    this.results.set(results, 4 * this.blocks);
    for (let i = 0; i < results.length; i += 4) this.offset = alignUp(this.offset + results[i]!);
    this.blocks += results.length / 4;
  }
}

function startOf(plan: PackPlan): Start {
  const { codec, blockBytes, layoutSha256, source, identities } = plan;
  const mtimesNs = identities.map(({ mtimeNs }) => mtimeNs);
  return { type: "start", format: "k3-pack", version: 1, codec, blockBytes, layoutSha256, source, mtimesNs };
}

function requireSameStart(before: Start | undefined, now: Start, path: string): void {
  const again = `remove ${path} to begin again`;
  if (!before) {
    throw new StageError("E_DATA", `${path}: not the journal of a pack of this version`, { hint: again });
  }
  const differences = packDifferences(before, now);
  if (differences.length > 0) {
    throw new StageError(
      "E_DATA",
      `the checkpoint has changed since packing began: ${differences.join("; ")}`,
      { hint: `restore it, or ${again}`, details: { differences } },
    );
  }
  if (before.codec !== now.codec || before.blockBytes !== now.blockBytes) {
    const was = `${before.codec}, blocks of ${before.blockBytes} bytes`;
    throw new StageError(
      "E_USAGE",
      `an unfinished trunk is here that was begun with other options (${was})`,
      {
        hint: `continue with --codec ${before.codec}, or ${again}`,
      },
    );
  }
  if (before.layoutSha256 !== now.layoutSha256) {
    throw new StageError("E_DATA", `${path}: begun by a version that cuts blocks differently`, {
      hint: again,
    });
  }
}

/**
 * Differences between two sources. Modification times count although there is a commit: it says what the files should
 * be, and a shard that was damaged when its blocks were read and has been repaired since has the same size and header.
 */
export function packDifferences(
  before: { source: SourceBinding; mtimesNs: string[] },
  now: { source: SourceBinding; mtimesNs: string[] },
): string[] {
  const list = sourceDifferences(before.source, now.source);
  if (list.length > 0) return list;
  return now.source.shards.flatMap(({ file }, s) =>
    before.mtimesNs[s] === now.mtimesNs[s] ? [] : [`${file} was written to`],
  );
}
