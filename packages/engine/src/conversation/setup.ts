import type { Sampler, ToolDeclaration } from "../text/index.ts";
import type { Kept } from "./log.ts";
import { type SetupRecord, VERSION } from "./records.ts";
import type { ConversationOpenOptions, Setup } from "./types.ts";

/** What a conversation begins with: what is asked for, else what is kept, else the defaults. */
export function setupOf(options: ConversationOpenOptions, kept: Kept | null): Setup {
  const before = kept?.setup;
  return {
    system: options.system ?? before?.system ?? null,
    tools: options.tools ?? before?.tools ?? [],
    thinking: options.thinking ?? before?.thinking ?? true,
    thinkingEffort: options.thinkingEffort ?? before?.thinking_effort ?? "max",
  };
}

/** The same with what it belongs to, as it is written down. */
export function setupRecord(setup: Setup, { model }: ConversationOpenOptions, sampler: Sampler): SetupRecord {
  return {
    type: "setup",
    version: VERSION,
    model: { config_sha256: model.configSha256, revision: model.revision },
    system: setup.system,
    tools: setup.tools as Record<string, unknown>[],
    thinking: setup.thinking,
    thinking_effort: setup.thinkingEffort,
    seed: sampler.seed.toString(),
    sampler: sampler.saveState(),
  };
}

export const sameModel = (a: SetupRecord, b: SetupRecord): boolean =>
  a.model.config_sha256 === b.model.config_sha256 && a.model.revision === b.model.revision;

/** What makes the beginning of a conversation another one, in words; null when nothing does. */
export function changeBetween(before: SetupRecord, after: SetupRecord): string | null {
  if (!sameModel(before, after)) {
    const { revision, config_sha256 } = before.model;
    return `it was held with another model (${revision ?? `config ${config_sha256.slice(0, 12)}`})`;
  }
  if (before.system !== after.system) return "the system text changed";
  if (!sameTools(before.tools, after.tools)) return "the tools changed";
  if (before.thinking !== after.thinking) {
    return `it was held with${before.thinking ? "" : "out"} thinking`;
  }
  return before.thinking_effort === after.thinking_effort ? null : "the thinking effort changed";
}

const sameTools = (a: readonly ToolDeclaration[], b: readonly ToolDeclaration[]): boolean =>
  JSON.stringify(a) === JSON.stringify(b);
