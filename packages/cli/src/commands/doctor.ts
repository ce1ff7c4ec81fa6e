import { doctor } from "@k3/bench";
import { EXIT, formatBytes } from "@k3/stage";
import { real } from "../options.ts";
import { command } from "./command.ts";

export const doctorCommand = command({
  name: "doctor [dir]",
  describe: "say what this machine can do, what stands in the way, and the exact next command",
  options: (yargs) =>
    yargs
      .positional("dir", { type: "string", default: ".", describe: "where the checkpoint is or will be" })
      .option("probe-seconds", {
        ...real("probe-seconds", "how long to measure each disk", { min: 0.1, max: 600 }),
        default: "5",
      }),
  run: async ({ dir, probeSeconds }, { output, signal, setExit }) => {
    const result = await doctor({ dir, probeSeconds, signal, onEvent: output.onEvent });
    if (!result.ok) setExit(result.exit ?? EXIT.resources);
    output.result("doctor", result, [
      `cpu       ${result.cpu.model}, ${result.cpu.threads} threads, ${result.cpu.isa}`,
      `memory    ${formatBytes(result.memory.available_bytes)} usable of ${formatBytes(result.memory.total_bytes)}`,
      ...result.disks.map((disk) => `disk      ${disk.summary}`),
      ...result.findings.map(
        ({ level, message, hint }) => `${level.padEnd(9)} ${message}${hint ? `: ${hint}` : ""}`,
      ),
      `next      ${result.next_command}`,
    ]);
  },
});
