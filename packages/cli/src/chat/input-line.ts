/** What a person, or a line of a pipe, wants. */
export type Wish =
  | { kind: "say"; text: string }
  | { kind: "tool"; result: string }
  | { kind: "continue" | "reset" | "help" | "exit" | "nothing" }
  | { kind: "unknown"; command: string };

export const HELP = [
  "/tool RESULT   give the result of the call that the model made",
  "/continue      go on with an answer that was cut off",
  "/reset         forget the conversation, keep system text and tools",
  "/exit          end (also Ctrl-C and Ctrl-D); a kept conversation goes on next time",
  "//TEXT         say something that begins with a slash",
  "Ctrl-C         while the model answers: stop it after this token; twice: at once",
];

const PLAIN = new Set(["continue", "reset", "help", "exit"] as const);

/** Reads a line typed in a terminal. Several lines at once are pasted text, and all of it is said. */
export function wishOf(line: string): Wish {
  if (line.trim() === "") return { kind: "nothing" };
  if (!line.startsWith("/") || line.includes("\n")) return { kind: "say", text: line };
  if (line.startsWith("//")) return { kind: "say", text: line.slice(1) };
  const [, name, rest] = /^\/(\S*)\s*([\s\S]*)$/.exec(line)!;
  if (name === "tool") return { kind: "tool", result: rest! };
  if (rest === "" && PLAIN.has(name as "exit")) return { kind: name as "exit" };
  return { kind: "unknown", command: `/${name}` };
}

/** Reads a line of a pipe: a message as it is, but for `/tool RESULT`, which nothing else could say. */
export function wishOfPipe(line: string): Wish {
  if (line.trim() === "") return { kind: "nothing" };
  const result = /^\/tool\s+(.*)$/s.exec(line)?.[1];
  return result === undefined ? { kind: "say", text: line } : { kind: "tool", result };
}
