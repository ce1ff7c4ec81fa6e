import { StatusLine, type TerminalStream } from "../status-line.ts";

/** Anything that moves the cursor or worse: what a model or a tool writes must not command the terminal. */
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Writes answers to a terminal, with a line of progress below the text that comes and goes without touching it. */
export class Screen {
  readonly #stream: TerminalStream;
  readonly #plain: boolean;
  readonly #status: StatusLine;
  #dim = false;

  constructor(stream: TerminalStream, { plain }: { plain: boolean }) {
    this.#stream = stream;
    this.#plain = plain;
    this.#status = new StatusLine(stream);
  }

  /** Text of the answer, or of the thinking, which is dim (without colours: led by a word). */
  text(text: string, thinking: boolean): void {
    if (text === "") return;
    this.#status.clear();
    if (thinking !== this.#dim) this.#turnTo(thinking);
    this.#stream.write(text.replaceAll(CONTROLS, "\u{fffd}"));
    this.#status.midline = !text.endsWith("\n");
  }

  /** A line of ours. */
  line(line: string): void {
    this.endText();
    this.#stream.write(`${line.replaceAll(CONTROLS, "\u{fffd}")}\n`);
  }

  /** Ends what `text` wrote. */
  endText(): void {
    this.#status.clear();
    if (this.#dim && !this.#plain) this.#stream.write("\x1b[22m");
    this.#dim = false;
    if (this.#status.midline) this.#stream.write("\n");
    this.#status.midline = false;
  }

  /** Shows progress; the text above stays as it is. */
  status(line: string): void {
    if (!this.#plain) this.#status.show(line, !this.#dim);
  }

  #turnTo(thinking: boolean): void {
    this.#dim = thinking;
    if (this.#plain) this.#stream.write(thinking ? "[thinking] " : "\n\n[answer] ");
    else this.#stream.write(thinking ? "\x1b[2m" : "\x1b[22m\n\n");
  }
}
