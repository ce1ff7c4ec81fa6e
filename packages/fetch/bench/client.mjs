// One run of fetch in a process of its own; prints its result and its peak memory.
import { readFileSync } from "node:fs";
import { fetchSnapshot } from "../dist/index.js";

const options = JSON.parse(process.argv[2]);
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const result = await fetchSnapshot({
  ...options,
  onEvent: (event) => {
    if (event.type === "progress" && event.phase === "downloading")
      say({ done: event.done, detail: event.detail });
  },
});
const peakKb = Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))?.[1]);
const { user, system } = process.cpuUsage();
say({ result, peakMb: (peakKb * 1024) / 1e6, cpuSeconds: (user + system) / 1e6 });
