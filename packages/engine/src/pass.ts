import { Meter, type StageOptions } from "@k3/stage";
import type { NativePass, NativeStats } from "./native.ts";

/** What one pass over a chunk of tokens read and did. Bytes are payload bytes from the device, not cache hits. */
export interface PassStats {
  tokens: number;
  seconds: number;
  read: { trunk_bytes: number; head_bytes: number; expert_bytes: number };
  /** Distinct (layer, expert) pairs that the pass needed, those that were in memory, and those that were read. */
  experts: { requested: number; resident: number; read: number };
  /** Seconds that workers stood still for data, added over the workers. */
  wait_seconds: number;
}

export interface Pass extends NativePass {
  stats: PassStats;
}

const POLL_MS = 200;

/** What a pass did, by the engine's totals before and after it. */
export function passStats(
  tokens: number,
  seconds: number,
  before: NativeStats,
  after: NativeStats,
): PassStats {
  const requested = after.expertsRequested - before.expertsRequested;
  const resident = after.expertsResident - before.expertsResident;
  return {
    tokens,
    seconds,
    read: {
      trunk_bytes: after.trunkBytes - before.trunkBytes,
      head_bytes: after.headBytes - before.headBytes,
      expert_bytes: after.expertBytes - before.expertBytes,
    },
    experts: { requested, resident, read: requested - resident },
    wait_seconds: (after.waitNs - before.waitNs) / 1e9,
  };
}

/** Reports how far the pass at work is, until the function that it gives is called: with false when the totals are gone. */
export function reportPass(
  phase: string,
  layers: number,
  totals: () => NativeStats,
  { onEvent }: StageOptions,
): (open: boolean) => void {
  if (!onEvent) return () => undefined;
  const meter = new Meter({ stage: "run", phase, unit: "layers", total: layers, onEvent });
  const bytes = (stats: NativeStats) => stats.trunkBytes + stats.headBytes + stats.expertBytes;
  const before = bytes(totals());
  const started = performance.now();
  const report = () => {
    const stats = totals();
    const read = bytes(stats) - before;
    const seconds = Math.max(0.001, (performance.now() - started) / 1000);
    meter.phase = `${phase}: layer ${Math.min(stats.layer + 1, layers)} of ${layers}`;
    meter.detail = {
      read_bytes: read,
      bytes_per_second: Math.round(read / seconds),
      retries: stats.retries,
    };
    meter.set(stats.layer);
  };
  const timer = setInterval(report, POLL_MS);
  return (open) => {
    clearInterval(timer);
    if (!open) return;
    report();
    meter.emit();
  };
}
