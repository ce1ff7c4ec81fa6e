import { StageError } from "@k3/stage";

export interface StopStep {
  /** Text that can be shown: none of it belongs, or could still belong, to a stop text. */
  readonly text: string;
  /** The stop text that was completed, or null. After one, nothing more is given out. */
  readonly stopped: string | null;
}

export interface StopMatcher {
  /** Takes the next piece of text, cut anywhere between characters. */
  push(text: string): StopStep;
  /** No more text comes: gives out what was held back. */
  end(): string;
}

/**
 * Watches streamed text for stop texts. The one completed first ends it, the longest among those completed at the same character; text
 * before it is given out, it is not. How the text is cut into pieces changes nothing, so a stop text may span tokens.
 * Works by one Knuth-Morris-Pratt automaton per stop text. Throws E_USAGE for stop texts that are empty or have lone surrogates.
 */
export function createStopMatcher(stops: readonly string[]): StopMatcher {
  const automata = stops.map((stop) => {
    if (typeof stop !== "string" || stop === "" || !stop.isWellFormed()) {
      throw new StageError("E_USAGE", `${JSON.stringify(stop)} cannot be a stop text`);
    }
    return { stop, failure: failureTable(stop), matched: 0 };
  });
  let held = "";
  let stopped: string | null = null;
  return {
    push(text) {
      if (stopped !== null) return { text: "", stopped };
      const pending = held + text;
      for (let at = held.length; at < pending.length; at++) {
        const unit = pending[at]!;
        for (const automaton of automata) {
          advance(automaton, unit);
          if (automaton.matched < automaton.stop.length) continue;
          if (stopped === null || automaton.stop.length > stopped.length) stopped = automaton.stop;
        }
        if (stopped !== null) {
          held = "";
          return { text: pending.slice(0, at + 1 - stopped.length), stopped };
        }
      }
      // The longest beginning of a stop text that the text ends with may still grow into it.
      const safe = pending.length - Math.max(0, ...automata.map(({ matched }) => matched));
      held = pending.slice(safe);
      return { text: pending.slice(0, safe), stopped: null };
    },
    end() {
      const rest = held;
      held = "";
      for (const automaton of automata) automaton.matched = 0;
      return rest;
    },
  };
}

function advance(
  automaton: { stop: string; failure: readonly number[]; matched: number },
  unit: string,
): void {
  const { stop, failure } = automaton;
  while (automaton.matched > 0 && stop[automaton.matched] !== unit)
    automaton.matched = failure[automaton.matched - 1]!;
  if (stop[automaton.matched] === unit) automaton.matched += 1;
}

/** For each beginning of the stop text, the length of its longest proper end that is also its beginning. */
function failureTable(stop: string): number[] {
  const table = [0];
  let length = 0;
  for (let at = 1; at < stop.length; at++) {
    while (length > 0 && stop[at] !== stop[length]) length = table[length - 1]!;
    if (stop[at] === stop[length]) length += 1;
    table.push(length);
  }
  return table;
}
