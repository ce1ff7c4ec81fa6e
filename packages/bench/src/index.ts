export { type BenchOptions, bench } from "./bench.ts";
export {
  type Against,
  type BenchMedian,
  type BenchPoint,
  type BenchResult,
  type CodecRatio,
  type ColdMode,
  PHASES,
  pointLabel,
  type RunReceipt,
} from "./bench-result.ts";
export { type CacheSimulation, cacheSim } from "./cache-sim.ts";
export { type CanaryCheck, type CanaryOptions, type CanaryResult, canary } from "./canary.ts";
export { type Comparison, compareRuns } from "./compare.ts";
export type { MeasuredDisk } from "./disks.ts";
export { type DoctorOptions, type DoctorResult, doctor } from "./doctor.ts";
export { EXPECTATIONS_FILE, type Expectations, expectationsOf } from "./expectations.ts";
export type { FilesystemFeatures } from "./filesystem.ts";
export type { Finding } from "./findings.ts";
export type { Machine } from "./machine.ts";
export {
  type PlanOptions,
  type PlanResult,
  type PlanSource,
  plan,
  planSourceOfDirectory,
  RELEASED_PLAN_SOURCE,
} from "./plan.ts";
export type { Prediction } from "./predict.ts";
export { type DiskProbe, type ProbeOptions, probeDisk } from "./probe.ts";
export type { BlockDevice, ReadAccounts } from "./read-accounts.ts";
export type { MeasuredRun, MeasuredStep } from "./run-protocol.ts";
export type { RatioInterval } from "./statistics.ts";
