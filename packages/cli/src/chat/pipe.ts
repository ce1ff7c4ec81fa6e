import { createInterface } from "node:readline";
import type { Conversation, Message, Turn, TurnOptions } from "@k3/engine";
import { EXIT, StageError } from "@k3/stage";
import type { Context } from "../context.ts";
import { wishOfPipe } from "./input-line.ts";
import { callLine, reportOf, summaryOf, type TurnReport } from "./report.ts";
import { ToolResults } from "./tool-results.ts";

/**
 * Each line of standard input is said, each answer printed. An answer that the end of an earlier process cut off is finished first.
 * An interruption ends it with exit 130; with --conversation the same command goes on.
 */
export async function talkThroughPipe(conversation: Conversation, context: Context): Promise<TurnReport[]> {
  const { output, signal, stdin, setExit } = context;
  const reports: TurnReport[] = [];
  const results = new ToolResults(conversation);
  const options: TurnOptions = {
    signal,
    onEvent: output.onEvent,
    onPiece: (piece) => piece.type === "content" && output.text(piece.text),
  };
  const finish = (turn: Turn): void => {
    if (turn.content !== "") output.text("\n");
    for (const call of turn.tool_calls) output.text(`${callLine(call)}\n`);
    const report = reportOf(turn);
    reports.push(report);
    output.record({ type: "log", level: "info", stage: "chat", message: report.content, turn: report });
    output.note(summaryOf(turn));
    if (turn.finish_reason === "interrupted") setExit(EXIT.interrupted);
    if (turn.finish_reason === "length") output.note("the answer was cut off at --generate tokens");
  };
  const say = async (messages: Message[]) => finish(await conversation.say(messages, options));

  const { unfinished } = conversation;
  if (unfinished !== null && unfinished.why !== "length") {
    output.note(`finishing the answer that was cut off after ${unfinished.tokens} tokens`);
    finish(await conversation.continue(options));
  }
  const lines = createInterface({ input: stdin, crlfDelay: Number.POSITIVE_INFINITY });
  const close = () => lines.close();
  signal.addEventListener("abort", close, { once: true });
  try {
    for await (const line of lines) {
      if (signal.aborted) break;
      const wish = wishOfPipe(line);
      if (wish.kind === "say") await say([...results.flush(), { role: "user", content: wish.text }]);
      else if (wish.kind === "tool") {
        if (results.next === null) {
          throw new StageError("E_USAGE", "/tool answers a call, and the model has made none", {
            hint: "declare tools with --tools FILE",
          });
        }
        const messages = results.take(wish.result);
        if (messages !== null) await say(messages);
      }
    }
  } finally {
    signal.removeEventListener("abort", close);
    lines.close();
  }
  if (signal.aborted) setExit(EXIT.interrupted);
  return reports;
}
