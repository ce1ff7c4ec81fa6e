import { type Lock, lockFile, StageError, throwIfAborted } from "@k3/stage";
import { createSampler, type Sampler } from "../text/index.ts";
import { ConversationLog, type Kept, logPath } from "./log.ts";
import { setupOf } from "./setup.ts";
import { StateKeeper } from "./state-keeper.ts";
import type { ConversationOpenOptions, Setup } from "./types.ts";

/** What a conversation holds open, and what it was found to be. */
export interface Parts {
  setup: Setup;
  log: ConversationLog;
  keeper: StateKeeper;
  sampler: Sampler;
  lock: Lock | null;
  kept: Kept | null;
}

/** Opens them: see Conversation.open for the errors. After one, nothing is left open. */
export async function openParts(options: ConversationOpenOptions): Promise<Parts> {
  const { model, tokenizer, dir = null, sampling } = options;
  if (tokenizer.vocabSize > model.config.vocabSize) {
    throw new StageError(
      "E_CONFIG",
      `the tokenizer has ${tokenizer.vocabSize} ids, the model ${model.config.vocabSize}`,
    );
  }
  throwIfAborted(options.signal);
  const lock = dir === null ? null : await lockFile(`${dir}/lock`, "talking");
  let log: ConversationLog | undefined;
  let keeper: StateKeeper | undefined;
  try {
    const opened = await ConversationLog.open(dir === null ? null : logPath(dir));
    log = opened.log;
    keeper = new StateKeeper(model, dir === null ? null : `${dir}/state.k3`);
    await keeper.requireSpace();
    const { kept } = opened;
    const sampler = createSampler(
      sampling?.seed === undefined && kept ? { ...sampling, seed: BigInt(kept.setup.seed) } : sampling,
    );
    if (kept && sampler.seed === BigInt(kept.setup.seed)) sampler.restoreState(kept.sampler);
    return { setup: setupOf(options, kept), log, keeper, sampler, lock, kept };
  } catch (error) {
    await closeParts({ keeper, log, lock });
    throw error;
  }
}

/** Closes files, lock and session. */
export async function closeParts({
  keeper,
  log,
  lock,
}: {
  [Part in "keeper" | "log" | "lock"]?: Parts[Part] | undefined;
}): Promise<void> {
  keeper?.close();
  await log?.close();
  await lock?.release();
}
