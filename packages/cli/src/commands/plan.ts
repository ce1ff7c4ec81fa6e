import { type PlanResult, plan } from "@k3/bench";
import { formatBytes, formatSeconds } from "@k3/stage";
import { memory, rate, real, whole } from "../options.ts";
import { planSource } from "../plan-source.ts";
import { command } from "./command.ts";

export const planCommand = command({
  name: "plan [source]",
  describe:
    "say what a model will take here before anything is spent: bytes, hours, seconds per token, money",
  options: (yargs) =>
    yargs
      .positional("source", {
        type: "string",
        describe: "a repository of the Hub or a directory; the released Kimi K3 if not given",
      })
      .option("memory", memory("memory to plan for, or auto: what is free here"))
      .option("disk", rate("disk", "read rate of the disk, like 240MB/s; measured if not given"))
      .option("download", rate("download", "rate of the link, like 1Gbit"))
      .option("codec", {
        choices: ["bf16", "none"] as const,
        default: "bf16" as const,
        describe: "of the packed trunk",
      })
      .option("threads", whole("threads", "computing threads", { min: 1, max: 1024 }))
      .option("price-vm", real("price-vm", "price of the machine per hour", { min: 0 }))
      .option("price-disk", real("price-disk", "price of the disk per GB and month", { min: 0 })),
  run: async (args, { output, signal }) => {
    const result = await plan({
      source: await planSource(args.source, { signal, onEvent: output.onEvent }),
      memory: args.memory!,
      diskBytesPerSecond: args.disk,
      downloadBytesPerSecond: args.download,
      codec: args.codec,
      threads: args.threads,
      priceVmPerHour: args.priceVm,
      priceDiskPerGbMonth: args.priceDisk,
      signal,
      onEvent: output.onEvent,
    });
    output.result("plan", result, planLines(result));
  },
});

function planLines(result: PlanResult): string[] {
  const { fetch, verify, pack } = result.stages;
  return [
    `download  ${formatBytes(result.download_bytes)}, ${formatSeconds(fetch.seconds)}`,
    `disk      ${formatBytes(result.disk_bytes)} for checkpoint and trunk`,
    `verify    ${formatSeconds(verify.seconds)}`,
    `pack      ${formatSeconds(pack.seconds)}`,
    `token     ${formatSeconds(result.first_token_seconds)} for the first, ${formatSeconds(result.token_seconds)} for each further, ${formatBytes(result.read_bytes_per_token)} read for it`,
    `budget    ${formatBytes(result.memory_bytes)}: ${formatBytes(result.split.pinned_trunk_bytes)} of trunk and ${formatBytes(result.split.expert_cache_bytes)} of experts stay in memory, bound by ${result.split.bound}; the disk reads ${formatBytes(result.disk_bytes_per_second)}/s`,
    ...(result.cost
      ? [
          `cost      ${result.cost.total.toFixed(2)} ${result.cost.currency}, ${result.cost.per_hour.toFixed(3)} an hour`,
        ]
      : []),
    ...result.advice.map((line) => `advice    ${line}`),
  ];
}
