import { formatBytes, formatSeconds } from "@k3/stage";
import type { StageName } from "./state.ts";

/** One line about a finished stage, from its result. */
export function stageLine(name: StageName, result: Record<string, unknown> | undefined): string {
  const label = name.padEnd(7);
  if (!result) return `${label} not yet`;
  const bytes = (key: string) => formatBytes(Number(result[key]));
  const seconds = () => formatSeconds(Number(result["seconds"]));
  switch (name) {
    case "plan":
      return `${label} ${bytes("download_bytes")} to download, ${bytes("disk_bytes")} of disk, ${formatSeconds(Number(result["token_seconds"]))} a token expected`;
    case "fetch":
      return `${label} ${String(result["files"])} files, ${bytes("bytes")}, ${bytes("downloaded_bytes")} downloaded, ${seconds()}`;
    case "verify":
      return `${label} ${String(result["checked"])} files at level ${String(result["level"])}, ${seconds()}`;
    case "pack":
      return `${label} ${bytes("source_bytes")} into ${bytes("stored_bytes")}, ${String(result["blocks"])} blocks, ${seconds()}`;
    case "run": {
      const steps = result["steps"] as { phase: string; tokens: number; seconds: number }[];
      const decode = steps.filter((step) => step.phase === "decode");
      const total = (of: typeof steps) => of.reduce((sum, step) => sum + step.seconds, 0);
      return `${label} ${JSON.stringify(result["text"])}, first token ${formatSeconds(total(steps.filter((step) => step.phase === "prefill")))}${decode.length ? `, then ${formatSeconds(total(decode) / decode.length)} each` : ""}`;
    }
    case "bench":
      return `${label} ${(result["points"] as unknown[]).length} points measured, report in ${String(result["out_dir"])}`;
  }
}
