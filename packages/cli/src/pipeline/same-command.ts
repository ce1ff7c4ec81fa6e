import { shellWord } from "@k3/stage";
import { MINIATURE, type PipelineState } from "./state.ts";

/** The command that made this state and continues it; flags that have their default are left out. */
export function sameCommand(dir: string, state: PipelineState): string {
  const flags: [string, string, string][] = [
    ["--revision", state.revision, "main"],
    ["--dir", dir, ""],
    ["--memory", String(state.memory), "auto"],
    ["--prompt", state.prompt, DEFAULTS.prompt],
    ["--generate", String(state.generate), DEFAULTS.generate],
  ];
  const words = flags.flatMap(([name, value, usual]) => (value === usual ? [] : [name, shellWord(value)]));
  const repo = state.repo === MINIATURE ? [] : [shellWord(state.repo)];
  return ["k3 pipeline", ...repo, ...words].join(" ");
}

/** What a pipeline generates if nobody says. */
export const DEFAULTS = { prompt: "The capital of France is", generate: "8" } as const;
