import { Meter, StageError, type StageOptions, throwIfAborted } from "@k3/stage";
import { directoryFiles, type HubFile } from "./content.ts";
import { type Hub, type HubOptions, startHub } from "./hub.ts";

export interface ServeDirectoryOptions extends StageOptions, Omit<HubOptions, "repositories"> {
  /** Default `k3/miniature`. */
  repo?: string;
  /** Files over this many bytes are LFS, as are all `*.safetensors`. */
  lfsBytes?: number;
}

/**
 * Serves a directory as one repository whose commit is derived from its content, so the same bytes have the same
 * commit on every machine. Reads everything once, to hash it. Throws E_DATA when the directory holds no file.
 */
export async function serveDirectory(
  dir: string,
  options: ServeDirectoryOptions = {},
): Promise<Hub & { repo: string; commit: string }> {
  const { repo = "k3/miniature", lfsBytes, signal, onEvent, ...hubOptions } = options;
  const files = await directoryFiles(dir, lfsBytes === undefined ? {} : { lfsBytes });
  if (files.length === 0) throw new StageError("E_DATA", `${dir}: there is no file to serve`);
  await hashAll(files, { signal, onEvent });
  const hub = await startHub({ ...hubOptions, repositories: [{ name: repo, files }] });
  return { ...hub, repo, commit: hub.repository(repo).resolve("main")!.sha };
}

async function hashAll(files: readonly HubFile[], { signal, onEvent }: StageOptions): Promise<void> {
  const total = files.reduce((sum, file) => sum + file.size, 0);
  const meter = new Meter({ stage: "hub", phase: "hashing", unit: "bytes", total, onEvent });
  meter.emit();
  for (const file of files) {
    await file.hashes((bytes) => {
      throwIfAborted(signal);
      meter.add(bytes);
    });
  }
  meter.emit();
}
