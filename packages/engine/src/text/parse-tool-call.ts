/** A call that the model made. `arguments` is a mapping of typed values, or the JSON text when the model wrote one. */
export interface ParsedToolCall {
  /** `NAME:INDEX`; unique within the message, for use as `tool_call_id`. */
  readonly id: string;
  readonly type: "function";
  readonly function: { readonly name: string; readonly arguments: Record<string, unknown> | string };
}

/** Collects one `call` element: `argument` elements with key and type, or one `json` element. */
export class ToolCallBuilder {
  readonly #name: string;
  readonly #index: string;
  readonly #arguments: { key: string; type: string; text: string }[] = [];
  #json: string | null = null;
  #current: "argument" | "json" | null = null;

  constructor(attributes: ReadonlyMap<string, string>) {
    this.#name = attributes.get("tool") ?? "";
    this.#index = attributes.get("index") ?? "";
  }

  /** Begins an element within the call; false when calls have no such element at this place. */
  open(tag: string, attributes: ReadonlyMap<string, string>): boolean {
    if (this.#current !== null) return false;
    if (tag === "argument") {
      this.#arguments.push({
        key: attributes.get("key") ?? "",
        type: attributes.get("type") ?? "string",
        text: "",
      });
    } else if (tag === "json") this.#json = "";
    else return false;
    this.#current = tag;
    return true;
  }

  close(tag: string): void {
    if (tag === this.#current) this.#current = null;
  }

  /** Adds text to the open element; false when none is open. */
  text(text: string): boolean {
    if (this.#current === "json") this.#json += text;
    else if (this.#current === "argument") this.#arguments.at(-1)!.text += text;
    else return false;
    return true;
  }

  /** The call as far as it is known. A value that is not of its declared type is kept as text and reported. */
  build(): { call: ParsedToolCall; problems: string[] } {
    const problems: string[] = [];
    if (this.#name === "") problems.push("a tool call without a tool name");
    const call = (args: Record<string, unknown> | string): { call: ParsedToolCall; problems: string[] } => ({
      call: {
        id: `${this.#name}:${this.#index}`,
        type: "function",
        function: { name: this.#name, arguments: args },
      },
      problems,
    });
    if (this.#json !== null) {
      if (this.#arguments.length > 0) problems.push("a tool call with both a json element and arguments");
      return call(this.#json);
    }
    const values: Record<string, unknown> = {};
    for (const { key, type, text } of this.#arguments) {
      const typed = typedValue(type, text);
      if (typed === undefined) problems.push(`the argument ${JSON.stringify(key)} is not of type ${type}`);
      if (Object.hasOwn(values, key)) problems.push(`the argument ${JSON.stringify(key)} is given twice`);
      const value = typed === undefined ? text : typed;
      // Not an assignment: a key "__proto__" must become a member like any other.
      Object.defineProperty(values, key, { value, writable: true, enumerable: true, configurable: true });
    }
    return call(values);
  }
}

/** The value that a text has under a declared type; undefined when it has none. */
function typedValue(type: string, text: string): unknown {
  if (type === "string") return text;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (value === null) return type === "null" ? null : undefined;
  return (Array.isArray(value) ? "array" : typeof value) === type ? value : undefined;
}
