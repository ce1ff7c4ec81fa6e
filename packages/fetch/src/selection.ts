import type { SnapshotFile } from "@k3/stage";

/**
 * A test for any of the patterns, with the meaning that `hf download --include` gives them, which is that of Python's
 * fnmatch and not of a shell: `*` and `?` cross `/`, `[a-c]` and `[!a]` are sets, case matters, nothing else is special;
 * a pattern that ends in `/` means everything below.
 */
export function matcher(patterns: readonly string[]): (path: string) => boolean {
  const tests = patterns.map((pattern) => translate(pattern.endsWith("/") ? `${pattern}*` : pattern));
  return (path) => tests.some((test) => test.test(path));
}

function translate(pattern: string): RegExp {
  let source = "";
  for (let at = 0; at < pattern.length; at++) {
    const char = pattern[at]!;
    if (char === "*") {
      if (pattern[at - 1] !== "*") source += ".*";
    } else if (char === "?") {
      source += ".";
    } else if (char === "[") {
      // A `]` right after `[` or `[!` is a member of the set; without a closing bracket, `[` is an ordinary character.
      const end = pattern.indexOf("]", at + (pattern[at + 1] === "!" ? 3 : 2));
      if (end < 0) source += "\\[";
      else source += set(pattern.slice(at + 1, end));
      if (end >= 0) at = end;
    } else {
      source += literal(char);
    }
  }
  return new RegExp(`^(?:${source})$`, "su");
}

function set(body: string): string {
  const negated = body.startsWith("!");
  const members = [...(negated ? body.slice(1) : body)];
  let source = "";
  for (let at = 0; at < members.length; at++) {
    const low = members[at]!;
    const high = members[at + 1] === "-" ? members[at + 2] : undefined;
    if (high === undefined) source += member(low);
    else {
      if (low <= high) source += `${member(low)}-${member(high)}`; // a range the wrong way round is empty
      at += 2;
    }
  }
  if (source === "") return negated ? "." : "(?!)";
  return negated ? `[^${source}]` : `[${source}]`;
}

const literal = (char: string) => char.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&");
const member = (char: string) => (char === "-" ? "\\-" : literal(char));

/** The paths wanted by include and exclude patterns, or null when that is all of them. */
export function selectPaths(
  files: readonly SnapshotFile[],
  include: readonly string[],
  exclude: readonly string[],
): string[] | null {
  if (include.length === 0 && exclude.length === 0) return null;
  const included = include.length === 0 ? () => true : matcher(include);
  const excluded = matcher(exclude);
  return files.map((file) => file.path).filter((path) => included(path) && !excluded(path));
}

/**
 * The order of download: files that match a `first` pattern, then small files (config and tokenizer are there at
 * once), then the rest; by name within each, which is the order in which shards are read later.
 */
export function downloadOrder(
  files: readonly SnapshotFile[],
  first: readonly string[],
  smallBytes: number,
): SnapshotFile[] {
  const isFirst = matcher(first);
  const rank = (file: SnapshotFile) => (isFirst(file.path) ? 0 : 2) + (file.size < smallBytes ? 0 : 1);
  return [...files].sort((a, b) => rank(a) - rank(b) || (a.path < b.path ? -1 : 1));
}
