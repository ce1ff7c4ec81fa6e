import { open } from "node:fs/promises";
import { crc32 } from "node:zlib";
import { Journal, readJournal, StageError } from "@k3/stage";
import type { AssistantMessage, Message } from "../text/index.ts";
import { type ConversationRecord, recordSchema, type SetupRecord, VERSION } from "./records.ts";
import { sameModel } from "./setup.ts";
import type { FinishReason, KeptTurn } from "./types.ts";

/** Tokens and seconds of passes that were measured. */
export interface Measured {
  tokens: number;
  seconds: number;
}

/** Everything that the records of a conversation say. */
export interface Kept {
  setup: SetupRecord;
  turns: KeptTurn[];
  /** The state of the sampler's generator now. */
  sampler: string;
  /** The last prefill that was measured, for estimates. */
  prefill: Measured | null;
}

/** At most this long a generated token may be lost to a power failure; to a kill none is. */
const SYNC_MS = 500;

/** The journal of a conversation, or its place when the conversation is not kept. */
export class ConversationLog {
  readonly #journal: Journal | null;
  #synced = 0;

  private constructor(journal: Journal | null) {
    this.#journal = journal;
  }

  /**
   * Opens or begins one; without a path nothing is written. Throws E_DATA for a file of another kind or version, and for one that
   * is damaged before its end: cutting it there would lose what follows.
   */
  static async open(path: string | null): Promise<{ log: ConversationLog; kept: Kept | null }> {
    if (path === null) return { log: new ConversationLog(null), kept: null };
    await refuseDamage(path);
    const { journal, records } = await Journal.open(path);
    try {
      return { log: new ConversationLog(journal), kept: replay(records, path) };
    } catch (error) {
      await journal.close();
      throw error;
    }
  }

  /** Appends a record that is on disk for good when this resolves. */
  async append(record: ConversationRecord): Promise<void> {
    await this.#journal?.append(record);
    this.#synced = performance.now();
  }

  /** Appends a token, synced at most twice a second. */
  async appendToken(id: number, sampler: string | undefined): Promise<void> {
    const durable = performance.now() - this.#synced >= SYNC_MS;
    const record: ConversationRecord = { type: "token", id, ...(sampler === undefined ? {} : { sampler }) };
    await this.#journal?.append(record, { durable });
    if (durable) this.#synced = performance.now();
  }

  async close(): Promise<void> {
    await this.#journal?.close();
  }
}

/**
 * The tokens of a kept conversation, so that a model can be opened with room for them (`contextTokens`); 0 when there is none yet. Reads
 * only, and takes no lock. Throws as ConversationLog.open.
 */
export async function conversationTokens(dir: string): Promise<number> {
  const path = logPath(dir);
  await refuseDamage(path);
  const last = replay((await readJournal(path)).records, path)?.turns.at(-1);
  return last === undefined ? 0 : last.promptTokens + (last.ids?.length ?? 0);
}

export const logPath = (dir: string): string => `${dir}/conversation.jsonl`;

/** What the records add up to; null without any. Throws E_DATA for records that do not fit together. */
function replay(records: readonly unknown[], path: string): Kept | null {
  let setup: SetupRecord | undefined;
  let turns: KeptTurn[] = [];
  let sampler = "";
  let prefill: Measured | null = null;
  for (const [at, value] of records.entries()) {
    const parsed = recordSchema.safeParse(value);
    const fault = (what: string) =>
      new StageError("E_DATA", `${path}: record ${at + 1} ${what}`, {
        hint: "keep the file, and begin another conversation in an empty directory",
      });
    if (!parsed.success) {
      const version = (value as { version?: unknown } | null)?.version;
      throw fault(
        version !== undefined && version !== VERSION
          ? `is of the format version ${JSON.stringify(version)}; this is version ${VERSION}`
          : `is not one of a conversation (${parsed.error.issues[0]?.message})`,
      );
    }
    const record = parsed.data;
    if (record.type === "setup") {
      if (setup !== undefined && !sameModel(setup, record)) for (const turn of turns) turn.ids = null;
      setup = record;
      sampler = record.sampler;
      continue;
    }
    if (setup === undefined) throw fault("comes before any setup");
    const last = turns.at(-1);
    switch (record.type) {
      case "reset":
        turns = [];
        break;
      case "turn":
        turns.push({
          messages: record.messages as readonly Message[],
          thinking: setup.thinking,
          promptTokens: record.prompt_tokens,
          maxTokens: record.max_tokens,
          ids: [],
          end: null,
        });
        break;
      case "continue":
        if (last === undefined) throw fault("continues a turn that is not there");
        last.end = null;
        last.maxTokens = record.max_tokens;
        break;
      case "token":
        if (last === undefined || last.end !== null || last.ids === null) throw fault("is outside of a turn");
        last.ids.push(record.id);
        sampler = record.sampler ?? sampler;
        break;
      case "end": {
        if (last === undefined) throw fault("ends a turn that is not there");
        const finishReason: FinishReason = record.finish_reason;
        last.end = { finishReason, message: record.message as AssistantMessage };
        if (record.prefill.tokens > 0) prefill = record.prefill;
      }
    }
  }
  return setup === undefined ? null : { setup, turns, sampler, prefill };
}

/** A journal ends at its first bad line. That must be its torn end, not damage within, and the file must be ours. */
async function refuseDamage(path: string): Promise<void> {
  const { validBytes } = await readJournal(path);
  const file = await open(path, "r").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  if (file === null) return;
  try {
    const { size } = await file.stat();
    const rest = Buffer.alloc(size - validBytes);
    await file.read(rest, 0, rest.length, validBytes);
    const lines = rest.toString("utf8").split("\n");
    if (lines.slice(1).some(isRecord)) {
      throw new StageError("E_DATA", `${path} is damaged at byte ${validBytes}, with good records after it`, {
        hint: "restore it from a copy, or cut the file there yourself to lose what follows",
      });
    }
    if (validBytes === 0 && size > 0 && !'{"type":"setup"'.startsWith(lines[0]!.slice(0, 15))) {
      throw new StageError("E_DATA", `${path} is not a conversation of k3`, {
        hint: "give another directory",
      });
    }
  } finally {
    await file.close();
  }
}

function isRecord(line: string): boolean {
  const match = /^(.*) #([0-9a-f]{8})$/.exec(line);
  return match !== null && crc32(match[1]!) === Number.parseInt(match[2]!, 16);
}
