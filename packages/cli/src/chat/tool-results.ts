import type { Conversation, Message, ToolMessage } from "@k3/engine";

/** Collects results until every call of the last answer has one: the model is then told all of them together. */
export class ToolResults {
  readonly #conversation: Conversation;
  #results: ToolMessage[] = [];

  constructor(conversation: Conversation) {
    this.#conversation = conversation;
  }

  /** The call that the next result answers, or null when none waits. */
  get next(): { id: string; name: string } | null {
    return this.#conversation.openCalls[this.#results.length] ?? null;
  }

  /** Takes a result for the next call; gives the messages to say once all calls have theirs. */
  take(result: string): Message[] | null {
    const { id, name } = this.next!;
    this.#results.push({ role: "tool", tool_call_id: id, name, content: result });
    return this.next === null ? this.flush() : null;
  }

  /** What was collected so far, when the user says something else instead. */
  flush(): Message[] {
    const results = this.#results;
    this.#results = [];
    return results;
  }
}
