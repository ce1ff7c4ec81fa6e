import { StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import { dot, linear, type Rows } from "../reference/arithmetic.ts";
import { leading, type ReferenceModel } from "../reference/model.ts";
import { type RawTensor, widen } from "../reference/weights.ts";
import { bf16Tensor } from "./encode.ts";
import type { Sample } from "./samples.ts";

/** A sequence of the training set, and which id each of some positions must predict. */
export interface Lesson {
  ids: number[];
  targets: Map<number, number>;
}

/** Logit that a learned token gets where it is due; the others stay where chance put them, about N(0, 1). */
const TARGET_LOGIT = 14;

/** Least lead of every learned token over the next best one, in the final weights. */
const LEAST_MARGIN = 6;

/**
 * Samples as lessons. A sample whose sequence begins a longer one is taught there. Throws a StageError (E_DEFECT) when
 * two samples want different tokens after the same ids.
 */
export function lessonsOf(samples: readonly Sample[]): Lesson[] {
  const lessons: Lesson[] = [];
  const byLength = samples
    .map(({ promptIds, completionIds }) => ({
      ids: [...promptIds, ...completionIds],
      from: promptIds.length,
    }))
    .sort((a, b) => b.ids.length - a.ids.length);
  const wanted = new Map<string, number>();
  for (const { ids, from } of byLength) {
    let lesson = lessons.find((known) => ids.every((id, i) => known.ids[i] === id));
    if (lesson === undefined) {
      lesson = { ids, targets: new Map() };
      lessons.push(lesson);
    }
    for (let position = from - 1; position + 1 < ids.length; position++) {
      const prefix = ids.slice(0, position + 1).join();
      const target = ids[position + 1]!;
      if ((wanted.get(prefix) ?? target) !== target) {
        throw new StageError(
          "E_DEFECT",
          `the miniature's samples disagree about what follows the ids ${prefix}`,
        );
      }
      wanted.set(prefix, target);
      lesson.targets.set(position, target);
    }
  }
  return lessons;
}

/**
 * Solves the last projection. With H the final hidden states of the positions that matter (fewer than the hidden
 * width) and r what a token's row lacks there, the smallest change of the row that supplies it is H^T (H H^T)^-1 r.
 * The result is rounded to BF16 and checked: throws E_DEFECT when a learned token leads by less than LEAST_MARGIN.
 */
export async function learnHead(
  model: ReferenceModel,
  head: RawTensor,
  lessons: readonly Lesson[],
  { signal, onToken }: StageOptions & { onToken?: (tokens: number) => void } = {},
): Promise<RawTensor> {
  const hidden: Rows = [];
  const targets: number[] = [];
  for (const { ids, targets: due } of lessons) {
    // The pass is synchronous; between sequences others get their turn and an abort is seen.
    await new Promise((resolve) => setImmediate(resolve));
    throwIfAborted(signal);
    const share = ids.length / model.config.layers;
    const states = model.hidden(ids, undefined, () => onToken?.(share));
    for (const [position, target] of due) {
      hidden.push(states[position]!);
      targets.push(target);
    }
  }
  const width = model.config.hiddenSize;
  if (hidden.length >= width) {
    throw new StageError("E_DEFECT", `${hidden.length} learned tokens do not fit a hidden width of ${width}`);
  }
  const rows = widen(head.dtype, head.bytes, "lm_head");
  const solve = choleskySolver(hidden);
  for (const token of new Set(targets)) {
    const row = rows.subarray(token * width, (token + 1) * width);
    const lacking = Float64Array.from(hidden, (h, p) =>
      targets[p] === token ? TARGET_LOGIT - dot(h, row) : 0,
    );
    const shares = solve(lacking);
    for (let p = 0; p < hidden.length; p++) {
      for (let i = 0; i < width; i++) row[i] = row[i]! + shares[p]! * hidden[p]![i]!;
    }
  }
  const rounded = bf16Tensor(head.shape, (i) => rows[i]!);
  checkHead(hidden, targets, widen(rounded.dtype, rounded.bytes, "lm_head"));
  return rounded;
}

function checkHead(hidden: Rows, targets: readonly number[], head: Float64Array): void {
  linear(hidden, head).forEach((logits, p) => {
    const { best, margin } = leading(logits);
    if (best !== targets[p] || margin < LEAST_MARGIN) {
      throw new StageError(
        "E_DEFECT",
        `the miniature did not learn position ${p}: id ${best} leads by ${margin}, id ${targets[p]} should by ${LEAST_MARGIN}`,
        { hint: "another seed gives other weights" },
      );
    }
  });
}

/** Factors H H^T = L L^T once; the function returned solves it for a right-hand side. */
function choleskySolver(hidden: Rows): (right: Float64Array) => Float64Array {
  const n = hidden.length;
  const L = Array.from({ length: n }, () => new Float64Array(n));
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      const left = dot(L[i]!.subarray(0, j), L[j]!);
      const rest = dot(hidden[i]!, hidden[j]!) - left;
      if (i === j && !(rest > 0)) {
        throw new StageError("E_DEFECT", "two learned positions of the miniature have the same hidden state");
      }
      L[i]![j] = i === j ? Math.sqrt(rest) : rest / L[j]![j]!;
    }
  }
  return (right) => {
    const x = right.slice();
    for (let i = 0; i < n; i++) x[i] = (x[i]! - dot(L[i]!.subarray(0, i), x)) / L[i]![i]!;
    for (let i = n - 1; i >= 0; i--) {
      let rest = x[i]!;
      for (let j = i + 1; j < n; j++) rest -= L[j]![i]! * x[j]!;
      x[i] = rest / L[i]![i]!;
    }
    return x;
  };
}
