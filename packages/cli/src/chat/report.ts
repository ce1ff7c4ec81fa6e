import type { Turn } from "@k3/engine";
import { formatSeconds } from "@k3/stage";

/** A turn as `--json` shows it. */
export interface TurnReport {
  thinking: string;
  content: string;
  tool_calls: Turn["tool_calls"];
  finish_reason: Turn["finish_reason"];
  prompt_tokens: number;
  reused_tokens: number;
  prefill_tokens: number;
  generated_ids: readonly number[];
  recomputed: Turn["recomputed"];
  problems: readonly string[];
  seconds: Turn["seconds"];
}

export function reportOf({ message: _, ...turn }: Turn): TurnReport {
  return turn;
}

/** Reading and answering apart, as everywhere. */
export function summaryOf({ prefill_tokens, reused_tokens, generated_ids, seconds }: Turn): string {
  const decoded = generated_ids.length;
  const each = decoded === 0 ? "" : `, ${formatSeconds(seconds.decode / decoded)} each`;
  return `read ${prefill_tokens} tokens in ${formatSeconds(seconds.prefill)} (${reused_tokens} known), wrote ${decoded}${each}`;
}

/** A call for a person to see and answer. */
export function callLine({ id, function: called }: Turn["tool_calls"][number]): string {
  return JSON.stringify({ id, name: called.name, arguments: called.arguments });
}
