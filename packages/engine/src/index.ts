export * from "./conversation/index.ts";
export {
  type ExpertCachePolicy,
  type ExpertCacheResult,
  type ExpertTrace,
  simulateExpertCache,
} from "./expert-cache.ts";
export { censusPath } from "./expert-census.ts";
export { instructionSets, nativeFile } from "./loader.ts";
export { type AvailableMemory, availableMemory } from "./memory.ts";
export { Model } from "./model.ts";
export type { ModelOptions, Tuning } from "./model-options.ts";
export type { Pass, PassStats } from "./pass.ts";
export type { MemoryPlan } from "./plan.ts";
export { type RunOptions, type RunResult, type RunStep, run } from "./run.ts";
export {
  type GenerateOptions,
  type GenerateStep,
  type PassRecord,
  type PrefillOptions,
  Session,
  type Snapshot,
} from "./session.ts";
export * from "./text/index.ts";
