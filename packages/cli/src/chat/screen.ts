/** What a terminal needs of a stream. */
export interface TerminalStream extends NodeJS.WritableStream {
  columns?: number;
}

/** Anything that moves the cursor or worse: what a model or a tool writes must not command the terminal. */
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Writes answers to a terminal, with a line of progress below the text that comes and goes without touching it. */
export class Screen {
  readonly #stream: TerminalStream;
  readonly #plain: boolean;
  #status = false;
  #dim = false;
  /** Whether the cursor stands after text. */
  #midline = false;

  constructor(stream: TerminalStream, { plain }: { plain: boolean }) {
    this.#stream = stream;
    this.#plain = plain;
  }

  /** Text of the answer, or of the thinking, which is dim (without colours: led by a word). */
  text(text: string, thinking: boolean): void {
    if (text === "") return;
    this.#clear();
    if (thinking !== this.#dim) this.#turnTo(thinking);
    this.#stream.write(text.replaceAll(CONTROLS, "\u{fffd}"));
    this.#midline = !text.endsWith("\n");
  }

  /** A line of ours. */
  line(line: string): void {
    this.endText();
    this.#stream.write(`${line.replaceAll(CONTROLS, "\u{fffd}")}\n`);
  }

  /** Ends what `text` wrote. */
  endText(): void {
    this.#clear();
    if (this.#dim && !this.#plain) this.#stream.write("\x1b[22m");
    this.#dim = false;
    if (this.#midline) this.#stream.write("\n");
    this.#midline = false;
  }

  /**
   * Shows progress on the line below the cursor: make room there by going down and up, remember the place, write, come back. The
   * text above needs no redrawing, wherever it stands.
   */
  status(line: string): void {
    if (this.#plain) return;
    const shown = line.slice(0, Math.max(20, (this.#stream.columns || 80) - 1));
    const below = this.#midline ? "\x1bD\x1b[A\x1b7\r\n" : "\x1b7\r";
    this.#stream.write(
      `${below}\x1b[2K${this.#dim ? "" : "\x1b[2m"}${shown}${this.#dim ? "" : "\x1b[22m"}\x1b8`,
    );
    this.#status = true;
  }

  #clear(): void {
    if (this.#status) this.#stream.write(this.#midline ? "\x1b7\r\n\x1b[2K\x1b8" : "\r\x1b[2K");
    this.#status = false;
  }

  #turnTo(thinking: boolean): void {
    this.#dim = thinking;
    if (this.#plain) this.#stream.write(thinking ? "[thinking] " : "\n\n[answer] ");
    else this.#stream.write(thinking ? "\x1b[2m" : "\x1b[22m\n\n");
  }
}
