export { type BenchOptions, bench } from "./bench.ts";
export type { Against, BenchMedian, BenchPoint, BenchResult, ColdMode, RunReceipt } from "./bench-result.ts";
export { type CacheSimulation, cacheSim } from "./cache-sim.ts";
export { type CanaryCheck, type CanaryResult, canary } from "./canary.ts";
export { type Comparison, compareRuns } from "./compare.ts";
export { type DoctorResult, doctor, type Finding } from "./doctor.ts";
export { EXPECTATIONS_FILE, type Expectations, expectationsOf } from "./expectations.ts";
export {
  type PlanOptions,
  type PlanResult,
  type PlanSource,
  plan,
  planSourceOfDirectory,
  RELEASED_PLAN_SOURCE,
} from "./plan.ts";
export { type DiskProbe, probeDisk } from "./probe.ts";
