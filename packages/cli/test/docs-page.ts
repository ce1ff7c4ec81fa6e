import { readFile } from "node:fs/promises";

/** What a page of the documentation asks to be done, in its order. */
export type PageStep =
  /** `<!-- k3-test: ... -->`: prepares the directory, or says how the next block ends. */
  | { kind: "directive"; words: string[] }
  /** The commands of a fenced `sh` block that call k3, and the `text` block that follows with what they print. */
  | { kind: "block"; line: number; commands: string[]; expected: string[] | null };

const CALLS_K3 = /(^|[|;&(]\s*)(?:[A-Z_]+=\S*\s+)*(?:npx --yes pnpm@\S+ |pnpm )?k3 [a-z-]/;

export async function readPage(path: string): Promise<PageStep[]> {
  const lines = (await readFile(path, "utf8")).split("\n");
  const steps: PageStep[] = [];
  for (let at = 0; at < lines.length; at++) {
    const directives = /^<!-- k3-test: (.*) -->$/.exec(lines[at]!)?.[1];
    for (const directive of directives?.split(";") ?? [])
      steps.push({ kind: "directive", words: directive.trim().split(/\s+/) });
    const fence = /^( *)```(\w*)$/.exec(lines[at]!);
    if (!fence) continue;
    const end = lines.findIndex((line, index) => index > at && line.trim() === "```");
    const body = lines.slice(at + 1, end).map((line) => line.slice(fence[1]!.length));
    const last = steps.at(-1);
    if (fence[2] === "sh") {
      const commands = joinContinuations(body).filter((line) => CALLS_K3.test(line));
      if (commands.length > 0) steps.push({ kind: "block", line: at + 1, commands, expected: null });
    } else if (fence[2] === "text" && last?.kind === "block" && onlyBlanksSince(lines, at)) {
      last.expected = body;
    }
    at = end;
  }
  return steps;
}

function joinContinuations(lines: readonly string[]): string[] {
  const joined: string[] = [];
  let open = false;
  for (const line of lines) {
    const text = line.replace(/\s*\\$/, "");
    if (open) joined[joined.length - 1] += ` ${text.trim()}`;
    else joined.push(text);
    open = line.endsWith("\\");
  }
  return joined;
}

/** Whether the fence that opens at `at` follows directly upon the one before. */
function onlyBlanksSince(lines: readonly string[], at: number): boolean {
  let before = at - 1;
  while (before >= 0 && lines[before]!.trim() === "") before--;
  return lines[before]?.trim() === "```";
}

/** Durations and rates differ from run to run; everything else that a page shows must be what is printed. */
export function mask(line: string): string {
  return line
    .replace(/\d+(\.\d+)? (h \d+ min|min \d+ s|h|min|s|ms)\b/g, "# s")
    .replace(/\d+(\.\d+)? [kMGT]?B\/s/g, "# B/s")
    .trimEnd();
}

/**
 * Lines of `expected` that are in none of the streams, each in its order (nobody says which stream comes first); `…`
 * stands for anything, a line of it for any lines. A line that both streams have is taken from the one that leaves
 * fewer missing.
 */
export function missingLines(expected: readonly string[], printed: readonly string[]): string[] {
  const streams = printed.map((text) => text.split("\n").map(mask));
  const wanted = expected
    .filter((line) => line.trim() !== "" && line.trim() !== "…")
    .map((line) => {
      const parts = mask(line)
        .split("…")
        .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      return { line, pattern: new RegExp(`^${parts.join(".*")}$`) };
    });
  const search = (next: number, from: readonly number[]): string[] => {
    const head = wanted[next];
    if (!head) return [];
    let best: string[] | undefined;
    for (const [k, lines] of streams.entries()) {
      const at = lines.findIndex((line, index) => index >= from[k]! && head.pattern.test(line));
      if (at < 0) continue;
      const rest = search(next + 1, from.with(k, at + 1));
      if (rest.length === 0) return rest;
      if (!best || rest.length < best.length) best = rest;
    }
    return best ?? [head.line, ...search(next + 1, from)];
  };
  return search(
    0,
    streams.map(() => 0),
  );
}
