// Answers that were cut off: by the cap on tokens (T-45), by a stop, by an abort within a pass.
import fc from "fast-check";
import { expect, test } from "vitest";
import { closeMessage } from "../src/conversation/closing.ts";
import {
  Conversation,
  type ConversationOpenOptions,
  encodeConversation,
  Model,
  parseAssistant,
  parseConversation,
} from "../src/index.ts";
import { known, miniature } from "./conversation-fixture.ts";

const mini = miniature();
const open = (options: Partial<ConversationOpenOptions> = {}) =>
  Conversation.open({ model: mini.model, tokenizer: mini.tokenizer, ...options });

for (const name of ["thinking", "direct", "tools"] as const) {
  test(`cut at any token it can be closed to a well-formed message that says the same: ${name}`, () => {
    const { conversation, turns } = known(name);
    const { thinking, tools } = conversation;
    let refused = 0;
    for (const { promptIds, completionIds } of turns) {
      for (let cut = 0; cut <= completionIds.length; cut++) {
        const closed = closeMessage(mini.tokenizer, completionIds.slice(0, cut), thinking);
        const said = parseAssistant(mini.tokenizer, completionIds.slice(0, cut), { thinking });
        if (closed.ids === null) {
          refused += 1;
          expect(closed.reason).toMatch(/cut off within (a tool call|the name of an element)/);
          // Before the calls begin there is nothing that could not be closed.
          const opened = completionIds.lastIndexOf(mini.tokenizer.specials.get("<|open|>")!, cut - 1);
          expect(mini.tokenizer.decode(completionIds.slice(opened))).toMatch(
            /^<\|open\|>(tools|call|argument)/,
          );
          continue;
        }
        expect(closed.ids.slice(0, cut)).toEqual(completionIds.slice(0, cut));
        const ids = [...promptIds, ...closed.ids];
        const { messages } = parseConversation(mini.tokenizer, ids);
        expect(messages.at(-1)).toMatchObject({ role: "assistant", content: said.content });
        expect((messages.at(-1) as { reasoning_content?: string }).reasoning_content ?? "").toBe(
          said.thinking,
        );
        // The miniature's answers are tokenised as its texts are, so here both ways of encoding agree.
        expect(
          encodeConversation(mini.tokenizer, messages, { thinking, tools, generationPrompt: false }),
        ).toEqual(ids);
      }
    }
    expect(refused > 0).toBe(name === "tools");
  });
}

test("whatever a model generates, what is closed has one message and no image in it", () => {
  const { tokenizer } = mini;
  const special = [...tokenizer.specials.values()].slice(0, 24);
  const words = ["think", "response", "message", "tools", "call", ' role="system"', "x"].map((w) =>
    tokenizer.encode(w),
  );
  const piece = fc.oneof(
    fc.constantFrom(...special).map((id) => [id]),
    fc.constantFrom(...words),
    fc.integer({ min: 0, max: tokenizer.baseTokens - 1 }).map((id) => [id]),
  );
  const user = { role: "user" as const, content: "Hello!" };
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), fc.boolean(), (pieces, thinking) => {
      const generated = pieces.flat();
      const closed = closeMessage(tokenizer, generated, thinking);
      if (closed.ids === null) return;
      const prompt = encodeConversation(tokenizer, [user], { thinking });
      const read = parseConversation(tokenizer, [...prompt, ...closed.ids]);
      expect(read.messages.map(({ role }) => role)).toEqual(["user", "assistant"]);
      expect(closed.ids.includes(tokenizer.specials.get("<|media_pad|>")!)).toBe(false);
    }),
    { numRuns: process.env["K3_NIGHTLY"] === "1" ? 50_000 : 2_000, seed: 45 },
  );
});

test("capped anywhere: the reason is length, thinking never shows as content, and it can go on or be left", async () => {
  const { users, turns, conversation: expected } = known("thinking");
  const [first, second] = turns;
  for (let cap = 1; cap < first!.completionIds.length; cap += 2) {
    const conversation = await open({ maxTokens: cap });
    const turn = await conversation.say(users[0]!);
    expect(turn.finish_reason).toBe("length");
    expect(turn.generated_ids).toEqual(first!.completionIds.slice(0, cap));
    expect(expected.messages[1]!.content.startsWith(turn.content)).toBe(true);
    expect(expected.messages[1]!.reasoning!.startsWith(turn.thinking)).toBe(true);
    expect(conversation.unfinished).toEqual({ why: "length", tokens: cap });
    const rest = await conversation.continue({ maxTokens: 1000 });
    expect(rest.generated_ids).toEqual(first!.completionIds);
    expect(rest.finish_reason).toBe("stop");
    expect(rest.prefill_tokens).toBe(1);
    const next = await conversation.say(users[1]!, { maxTokens: 1000 });
    expect(next.generated_ids).toEqual(second!.completionIds);
    await conversation.close();
  }
});

test("left as it is, a capped answer is closed where it stands, and nothing is read twice", async () => {
  const { users, turns } = known("thinking");
  const { completionIds, promptIds } = turns[0]!;
  for (let cap = 1; cap < completionIds.length; cap += 3) {
    const conversation = await open();
    await conversation.say(users[0]!, { maxTokens: cap });
    const next = await conversation.say(users[1]!, { maxTokens: 1 });
    expect(next.recomputed).toBeNull();
    expect(next.reused_tokens).toBe(promptIds.length + cap - 1);
    const closed = closeMessage(mini.tokenizer, completionIds.slice(0, cap), true).ids!;
    expect(next.prompt_tokens).toBe(turns[1]!.promptIds.length - completionIds.length + closed.length);
    expect(next.prefill_tokens).toBe(next.prompt_tokens - next.reused_tokens);
    await conversation.close();
  }
});

test("a call that was cut off is not a call, and is not in the history", async () => {
  const { users, conversation: expected } = known("tools");
  const conversation = await open({ tools: expected.tools ?? [] });
  const whole = await conversation.say(users[0]!);
  await conversation.reset();
  const cut = await conversation.say(users[0]!, { maxTokens: whole.generated_ids.length - 8 });
  expect(cut).toMatchObject({ finish_reason: "length", tool_calls: [] });
  expect(cut.message.tool_calls).toBeUndefined();
  const next = await conversation.say("Well?", { maxTokens: 1 });
  expect(next.recomputed?.reason).toContain("within a tool call");
  await conversation.close();
});

test("stopped after a token: what there is stays, the state is whole, and it can go on after a restart", async () => {
  const { users, turns } = known("thinking");
  const dir = mini.place();
  const conversation = await open({ dir });
  const stop = new AbortController();
  let pieces = 0;
  const turn = await conversation.say(users[0]!, {
    stop: stop.signal,
    onPiece: () => ++pieces === 2 && stop.abort(),
  });
  expect(turn.finish_reason).toBe("interrupted");
  expect(turn.generated_ids.length).toBeLessThan(turns[0]!.completionIds.length);
  expect(turns[0]!.completionIds.slice(0, turn.generated_ids.length)).toEqual(turn.generated_ids);
  await conversation.close();
  const again = await open({ dir });
  expect(again.unfinished).toEqual({ why: "interrupted", tokens: turn.generated_ids.length });
  const rest = await again.continue();
  expect(rest.generated_ids).toEqual(turns[0]!.completionIds);
  expect(rest.prefill_tokens).toBe(1);
  await expect(again.continue()).rejects.toMatchObject({ code: "E_USAGE" });
  await again.close();
});

test("stopped while the prompt is read: after the pass under way, and it goes on from there", async () => {
  const { users, turns } = known("thinking");
  const model = await Model.open({
    modelDir: mini.dir,
    threads: 1,
    chunk: 8,
    memory: 4e8,
    contextTokens: 512,
  });
  const conversation = await Conversation.open({ model, tokenizer: mini.tokenizer });
  const stop = new AbortController();
  const turn = await conversation.say(users[0]!, {
    stop: stop.signal,
    onEvent: (event) => event.type === "progress" && event.phase.startsWith("reading") && stop.abort(),
  });
  expect(turn).toMatchObject({ finish_reason: "interrupted", content: "", thinking: "", generated_ids: [] });
  expect(turn.prefill_tokens).toBe(8);
  const rest = await conversation.continue();
  expect(rest.generated_ids).toEqual(turns[0]!.completionIds);
  expect(rest.reused_tokens).toBe(turn.prefill_tokens);
  expect(rest.prefill_tokens + turn.prefill_tokens).toBe(turn.prompt_tokens);
  await conversation.close();
  await model.close();
});

for (const kept of [true, false]) {
  test(`aborted within a pass, ${kept ? "kept on disk" : "in memory only"}: the session stays usable`, async () => {
    const { users, turns } = known("thinking");
    const conversation = await open(kept ? { dir: mini.place() } : {});
    await conversation.say(users[0]!);
    for (let delay = 0; delay < 4; delay++) {
      const abort = new AbortController();
      const aborting = setTimeout(() => abort.abort(), delay * 4);
      const turn = await conversation.say(users[1]!, { signal: abort.signal });
      clearTimeout(aborting);
      if (turn.finish_reason === "stop") break;
      expect(turn.finish_reason).toBe("interrupted");
      const rest = await conversation.continue();
      expect(rest.generated_ids.slice(0, 5)).not.toEqual([]);
      if (delay === 0) expect(rest.generated_ids).toEqual(turns[1]!.completionIds);
      if (kept) expect(rest.recomputed).toBeNull();
      else if (rest.recomputed) expect(rest.recomputed.reason).toContain("pass that was stopped");
      await conversation.reset();
      await conversation.say(users[0]!);
    }
    await conversation.close();
  });
}
