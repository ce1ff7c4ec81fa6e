// Runs of twin.mjs in processes of their own, for the comparisons that take several.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const TWIN = fileURLToPath(new URL("twin.mjs", import.meta.url));

export function medianOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** What `twin.mjs ARGS --json` prints; `wrap` gives the command line that is run instead of the plain one. */
export function runTwin(args, wrap = (command) => command) {
  const [program, ...rest] = wrap([process.execPath, TWIN, ...args, "--json"]);
  const output = execFileSync(program, rest, { encoding: "utf8", maxBuffer: 1 << 26 });
  return JSON.parse(output);
}

export const decodeSeconds = ({ steps }) =>
  steps.filter(({ phase }) => phase === "decode").map(({ seconds }) => seconds);
