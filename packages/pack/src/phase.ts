import type { PackPlan } from "./plan.ts";

/** What is at work, in words: the layer that a block belongs to. */
export function phaseOf(plan: PackPlan, block: number, verb: string): string {
  const { layout, tensors, layers } = plan;
  const first = layout.segments.tensor[layout.segmentStart[Math.min(block, layout.blocks - 1)]!]!;
  const { layer } = tensors[first]!;
  return layer === null ? `${verb} the head` : `${verb} layer ${layer + 1} of ${layers}`;
}
