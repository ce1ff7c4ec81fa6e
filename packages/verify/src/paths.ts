import { unsafePath } from "@k3/hub";
import { type SnapshotFile, StageError } from "@k3/stage";

/** Refuses (E_DATA) a manifest with a path that could lead out of the directory or into our own state, or that comes twice. */
export function requireSafePaths(files: readonly SnapshotFile[], where: string): void {
  const seen = new Set<string>();
  for (const { path } of files) {
    const unsafe = unsafePath(path);
    if (unsafe !== undefined || seen.has(path)) {
      const what = unsafe === undefined ? "a path that is listed twice" : "an unsafe path";
      const why = unsafe === undefined ? "" : ` (${unsafe})`;
      throw new StageError(
        "E_DATA",
        `${where}: ${what}, ${JSON.stringify(path)}${why}: the listing is refused`,
      );
    }
    seen.add(path);
  }
}
