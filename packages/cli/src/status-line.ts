/** What a terminal needs of a stream. */
export interface TerminalStream extends NodeJS.WritableStream {
  columns?: number;
}

/**
 * One line of progress on a terminal that comes and goes without touching the text above it. While the cursor stands
 * after text that has no end of line yet (`midline`), the line is drawn below: room is made there by going down and up,
 * the place is remembered, and the cursor comes back to it.
 */
export class StatusLine {
  readonly #stream: TerminalStream;
  #shown = false;
  /** Whether the cursor stands after text. Set it after clearing, by whoever writes text. */
  midline = false;

  constructor(stream: TerminalStream) {
    this.#stream = stream;
  }

  /** Draws the line, cut to the width of the screen; `dim` makes it stand back from the text. */
  show(line: string, dim = false): void {
    const shown = line.slice(0, Math.max(20, (this.#stream.columns || 80) - 1));
    const below = this.midline ? "\x1bD\x1b[A\x1b7\r\n" : "\x1b7\r";
    this.#stream.write(`${below}\x1b[2K${dim ? `\x1b[2m${shown}\x1b[22m` : shown}\x1b8`);
    this.#shown = true;
  }

  clear(): void {
    if (this.#shown) this.#stream.write(this.midline ? "\x1b7\r\n\x1b[2K\x1b8" : "\r\x1b[2K");
    this.#shown = false;
  }
}
