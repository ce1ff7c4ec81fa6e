import type { ReadStream } from "node:tty";
import type { Conversation, Message, Turn, TurnOptions } from "@k3/engine";
import { EXIT, StageError, type StageEvent } from "@k3/stage";
import type { Context } from "../context.ts";
import { progressLine } from "../output.ts";
import { HELP, wishOf } from "./input-line.ts";
import { Prompt } from "./prompt.ts";
import { callLine, reportOf, summaryOf, type TurnReport } from "./report.ts";
import { Screen } from "./screen.ts";
import { ToolResults } from "./tool-results.ts";

/** Whether a person sits at both ends. */
export function isTerminal({ stdin, output }: Context): boolean {
  return stdin === process.stdin && stdin.isTTY === true && process.stdout.isTTY === true && !output.json;
}

/** A session in a terminal; see HELP for what can be typed. Ends with Ctrl-C, Ctrl-D or /exit at the prompt. */
export async function talkInTerminal(
  conversation: Conversation,
  context: Context,
  { quiet }: { quiet: boolean },
): Promise<TurnReport[]> {
  const session = new TerminalSession(conversation, context, quiet);
  await session.run();
  return session.reports;
}

/** Progress shows up once this long nothing else has moved: with fast tokens it would only flicker. */
const CALM_MS = 500;

class TerminalSession {
  readonly reports: TurnReport[] = [];
  readonly #conversation: Conversation;
  readonly #context: Context;
  readonly #quiet: boolean;
  readonly #screen: Screen;
  readonly #prompt: Prompt;
  readonly #results: ToolResults;
  #moved = 0;

  constructor(conversation: Conversation, context: Context, quiet: boolean) {
    this.#conversation = conversation;
    this.#context = context;
    this.#quiet = quiet;
    const plain = process.env["TERM"] === "dumb" || Boolean(process.env["NO_COLOR"]);
    this.#screen = new Screen(process.stdout, { plain });
    const said = conversation.messages.flatMap(({ role, content }) =>
      role === "user" && typeof content === "string" && !content.includes("\n") ? [content] : [],
    );
    this.#prompt = new Prompt(process.stdin as ReadStream, process.stdout, said);
    this.#results = new ToolResults(conversation);
  }

  async run(): Promise<void> {
    const { signal, output, setExit } = this.#context;
    output.close();
    await this.#greet();
    while (!signal.aborted) {
      const line = await this.#prompt.ask(this.#results.next === null ? "> " : "call> ", signal);
      if (line === null || !(await this.#obey(line))) break;
    }
    if (signal.aborted) setExit(EXIT.interrupted);
    this.#screen.endText();
  }

  async #greet(): Promise<void> {
    const { opened, unfinished } = this.#conversation;
    if (!this.#quiet) {
      const before =
        opened.turns === 0 ? "" : `Going on after ${opened.turns} ${opened.turns === 1 ? "turn" : "turns"}. `;
      this.#screen.line(`${before}/help says what can be typed.`);
    }
    if (unfinished === null) return;
    this.#screen.line(`The last answer was cut off after ${unfinished.tokens} tokens.`);
    if (unfinished.why === "killed") await this.#turn((options) => this.#conversation.continue(options));
    else this.#screen.line("/continue goes on with it.");
  }

  /** False ends the session. */
  async #obey(line: string): Promise<boolean> {
    const wish = wishOf(line);
    switch (wish.kind) {
      case "exit":
        return false;
      case "say":
        await this.#say([...this.#results.flush(), { role: "user", content: wish.text }]);
        break;
      case "tool": {
        if (this.#results.next === null) {
          this.#screen.line("The model has made no call.");
          break;
        }
        const messages = this.#results.take(wish.result);
        if (messages === null) this.#screen.line(`Now the result of ${this.#results.next.id}.`);
        else await this.#say(messages);
        break;
      }
      case "continue":
        await this.#turn((options) => this.#conversation.continue(options));
        break;
      case "reset":
        this.#results.flush();
        await this.#conversation.reset();
        this.#screen.line("Everything is forgotten.");
        break;
      case "help":
        for (const text of HELP) this.#screen.line(text);
        break;
      case "unknown":
        this.#screen.line(`${wish.command} is no command; /help lists them, and //TEXT says /TEXT.`);
        break;
      case "nothing":
    }
    return true;
  }

  #say(messages: Message[]): Promise<void> {
    return this.#turn((options) => this.#conversation.say(messages, options));
  }

  async #turn(begin: (options: TurnOptions) => Promise<Turn>): Promise<void> {
    this.#moved = performance.now();
    const stop = new AbortController();
    const now = new AbortController();
    const unwatch = this.#prompt.watch(() => {
      if (stop.signal.aborted) now.abort();
      else stop.abort();
      this.#screen.status(
        now.signal.aborted ? "stopping at once" : "stopping after this token; Ctrl-C again stops at once",
      );
    });
    try {
      const turn = await begin({
        stop: stop.signal,
        signal: AbortSignal.any([this.#context.signal, now.signal]),
        onEvent: (event) => this.#event(event, stop.signal.aborted),
        onPiece: (piece) => {
          if (piece.type === "tool-call") return;
          this.#moved = performance.now();
          this.#screen.text(piece.text, piece.type === "thinking");
        },
      });
      this.#finish(turn);
    } catch (error) {
      // What cannot be said is no reason to leave; a weight that cannot be read is.
      if (!(error instanceof StageError && error.code === "E_USAGE")) throw error;
      this.#screen.line(error.message);
      if (error.hint !== undefined) this.#screen.line(`    ${error.hint}`);
    } finally {
      this.#screen.endText();
      unwatch();
    }
  }

  #finish(turn: Turn): void {
    this.#screen.endText();
    this.reports.push(reportOf(turn));
    for (const call of turn.tool_calls) this.#screen.line(callLine(call));
    const next = this.#results.next;
    if (next !== null) this.#screen.line(`Type /tool RESULT with the result of ${next.id}.`);
    if (turn.finish_reason === "length")
      this.#screen.line("The answer was cut off; /continue goes on with it.");
    if (turn.finish_reason === "interrupted") this.#screen.line("Stopped; /continue goes on with it.");
    if (!this.#quiet) this.#screen.line(`(${summaryOf(turn)})`);
  }

  #event(event: StageEvent, stopping: boolean): void {
    if (event.type === "log") {
      if (!this.#quiet || event.level !== "info") this.#screen.line(event.message);
    } else if (!this.#quiet && performance.now() - this.#moved > CALM_MS) {
      this.#screen.status(`${stopping ? "stopping after this token: " : ""}${progressLine(event)}`);
    }
  }
}
