// The process in which one run is measured: started by `measure.ts` with an IPC channel, given one RunRequest, it
// sends the stage's events and at the end one MeasuredRun or the error. A process of its own makes the cold start
// cold and the peak of resident memory this run's alone.
import { loadTokenizer, Model, type PassStats } from "@k3/engine";
import { type StageEvent, toStageError } from "@k3/stage";
import { counted, countedEach, peakResidentBytes, readCounters, sumOfKnown } from "./counters.ts";
import { MemorySamples } from "./memory-samples.ts";
import type { MeasuredRun, MeasuredStep, RunRequest } from "./run-protocol.ts";
import { median } from "./statistics.ts";

export type ChildMessage =
  | { kind: "event"; event: StageEvent }
  | { kind: "result"; run: MeasuredRun }
  | { kind: "error"; code: string; message: string; hint: string | undefined };

const send = (message: ChildMessage) => process.send?.(message);

process.once("message", (request: RunRequest) => {
  measure(request)
    .then((run) => send({ kind: "result", run }))
    .catch((error: unknown) => {
      const { code, message, hint } = toStageError(error);
      send({ kind: "error", code, message, hint });
    })
    .finally(() => process.disconnect());
});

async function measure(request: RunRequest): Promise<MeasuredRun> {
  const started = performance.now();
  const memory = new MemorySamples();
  const onEvent = (event: StageEvent) => void send({ kind: "event", event });

  const model = await Model.open({
    modelDir: request.modelDir,
    trunkDir: request.trunkDir,
    memory: request.memory,
    threads: request.threads,
    onEvent,
  });
  const open = (performance.now() - started) / 1000;
  memory.take();
  const ids = request.promptIds ?? (await loadTokenizer(request.modelDir)).encode(request.prompt!);
  const before = await readCounters(request.accounts);
  const clock = performance.now();

  const cold = model.session();
  const coldSteps = await cold.prefill(ids, { onEvent });
  cold.close();
  memory.take();
  const session = model.session();
  const prefillSteps = await session.prefill(ids, { onEvent });
  const generated: number[] = [];
  const decodeSteps: PassStats[] = [];
  for await (const step of session.generate({ maxTokens: request.generate, onEvent })) {
    generated.push(step.id);
    if (step.stats) decodeSteps.push(step.stats);
  }
  const wall = (performance.now() - clock) / 1000;
  const after = await readCounters(request.accounts);
  const samples = memory.end();

  const label =
    (phase: MeasuredStep["phase"]) =>
    ({ tokens, seconds, read, experts }: PassStats): MeasuredStep => ({
      phase,
      tokens,
      seconds,
      read,
      experts,
    });
  const steps = [
    ...coldSteps.map(label("cold")),
    ...prefillSteps.map(label("prefill")),
    ...decodeSteps.map(label("decode")),
  ];
  const seconds = (list: readonly PassStats[]) => list.reduce((sum, step) => sum + step.seconds, 0);
  const later = decodeSteps.slice(1).map((step) => step.seconds);
  const experts = steps.reduce((sum, step) => sum + step.experts.read, 0);
  const expertBytes = experts ? steps.reduce((sum, step) => sum + step.read.expert_bytes, 0) / experts : 0;
  const blockBytes = countedEach(before.blockReadBytes, after.blockReadBytes);
  const result: MeasuredRun = {
    open,
    cold_step: seconds(coldSteps),
    prefill: seconds(prefillSteps),
    first_decode: decodeSteps[0]?.seconds ?? null,
    decode: later.length > 0 ? median(later) : null,
    prompt_ids: ids,
    generated_ids: generated,
    steps,
    owed_bytes: steps.reduce(
      (sum, { read }) => sum + read.trunk_bytes + read.head_bytes + read.expert_bytes,
      0,
    ),
    device_bytes: counted(before.deviceReadBytes, after.deviceReadBytes),
    cgroup_read_bytes: sumOfKnown(countedEach(before.cgroupReadBytes, after.cgroupReadBytes)),
    block_read_bytes: sumOfKnown(blockBytes),
    block_devices: request.accounts.block.map((device, k) => ({ ...device, read_bytes: blockBytes[k]! })),
    expert_bytes_requested: steps.reduce((sum, step) => sum + step.experts.requested * expertBytes, 0),
    expert_bytes_avoided: steps.reduce((sum, step) => sum + step.experts.resident * expertBytes, 0),
    cpu_share: (after.cpuSeconds - before.cpuSeconds) / (wall * model.threads),
    io_wait_share: after.ioWaitSeconds === null ? null : (after.ioWaitSeconds - before.ioWaitSeconds!) / wall,
    peak_rss_bytes: await peakResidentBytes(),
    memory: samples,
    codec: request.trunkDir === undefined ? null : model.trunk.codec,
    threads: model.threads,
    memory_bytes: model.plan.budgetBytes,
  };
  session.close();
  await model.close();
  return result;
}
