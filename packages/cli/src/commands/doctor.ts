import { stat } from "node:fs/promises";
import { type DoctorResult, doctor } from "@k3/bench";
import { formatBytes, formatSeconds } from "@k3/stage";
import { real, text } from "../options.ts";
import { placesOf } from "../pipeline/places.ts";
import { sameCommand } from "../pipeline/same-command.ts";
import { readState, STAGES } from "../pipeline/state.ts";
import { command } from "./command.ts";

export const doctorCommand = command({
  name: "doctor [dir]",
  describe: "say what this machine can do, what stands in the way, and the exact next command",
  options: (yargs) =>
    yargs
      .positional("dir", {
        type: "string",
        default: ".",
        describe: "where the checkpoint is or will be, or a pipeline's directory",
      })
      .option("trunk", text("trunk", "where the packed trunk is or will be; beside dir if not given"))
      .option("probe-seconds", {
        ...real("probe-seconds", "how long to measure each disk", { min: 0.1, max: 600 }),
        default: "5",
      }),
  run: async ({ dir, trunk, probeSeconds }, { output, signal, setExit }) => {
    const isDirectory = (await stat(dir).catch(() => undefined))?.isDirectory();
    const state = isDirectory ? await readState(dir) : undefined;
    const places = state ? placesOf(dir) : { modelDir: dir, trunkDir: undefined };
    const result = await doctor({
      dir: places.modelDir,
      trunkDir: trunk ?? places.trunkDir,
      probeSeconds,
      signal,
      onEvent: output.onEvent,
    });
    const unfinished = state && STAGES.some((name) => !state.stages[name]);
    if (result.ok && unfinished) result.next_command = sameCommand(dir, state);
    setExit(result.exit);
    output.result("doctor", result, doctorLines(result));
  },
});

const doctorLines = ({ cpu, memory, disks, budget, findings, next_command }: DoctorResult): string[] => [
  `cpu       ${cpu.model}, ${cpu.threads} threads, ${cpu.isa}`,
  `memory    ${formatBytes(memory.available_bytes)} usable of ${formatBytes(memory.total_bytes)}`,
  ...disks.map(({ summary }) => `disk      ${summary}`),
  ...(budget
    ? [
        `budget    ${formatBytes(budget.bytes)}: ${formatBytes(budget.pinned_trunk_bytes)} of trunk and ${formatBytes(budget.expert_cache_bytes)} of experts stay in memory, ${formatBytes(budget.read_bytes_per_token)} read and ${formatSeconds(budget.token_seconds)} for a token, bound by ${budget.bound}`,
      ]
    : []),
  ...findings.map(({ level, message, hint }) => `${level.padEnd(9)} ${message}${hint ? `: ${hint}` : ""}`),
  `next      ${next_command}`,
];
