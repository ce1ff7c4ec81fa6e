// What kill -9 leaves is what the directory holds at that moment, so tests copy it at every token and open the copies.
import { cpSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { appendFile, mkdir, readdir, readFile, truncate, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { encodeRecord, type StageEvent } from "@k3/stage";
import { MINIATURE_TOOLS } from "@k3/testkit";
import { describe, expect, test } from "vitest";
import { Conversation, type ConversationOpenOptions, conversationTokens, Model } from "../src/index.ts";
import { known, miniature } from "./conversation-fixture.ts";

const mini = miniature();
const open = (options: Partial<ConversationOpenOptions> = {}) =>
  Conversation.open({ model: mini.model, tokenizer: mini.tokenizer, ...options });

const copyOf = (dir: string): string => {
  const copy = mini.place();
  cpSync(dir, copy, { recursive: true });
  return copy;
};

/** Opens a copy, and gives the warnings too. */
async function reopen(dir: string, options: Partial<ConversationOpenOptions> = {}) {
  const warnings: string[] = [];
  const onEvent = (event: StageEvent) => {
    if (event.type === "log" && event.level === "warn") warnings.push(event.message);
  };
  return { conversation: await open({ dir, onEvent, ...options }), warnings };
}

test("killed between turns: what was said is kept, and only what is new is read", async () => {
  const { users, turns } = known("thinking");
  const dir = mini.place();
  const first = await open({ dir });
  await first.say(users[0]!);
  const copy = copyOf(dir);
  await first.close();

  const seen = turns[0]!.promptIds.length + turns[0]!.completionIds.length - 1;
  expect(await conversationTokens(copy)).toBe(seen + 1);
  const { conversation, warnings } = await reopen(copy);
  expect(conversation.opened).toEqual({ turns: 1, reused_tokens: seen, recompute: null });
  expect(conversation.messages).toEqual([
    { role: "user", content: "Hello!" },
    { role: "assistant", content: "Hello! How can I help you?", reasoning_content: "The user says hello." },
  ]);
  const turn = await conversation.say(users[1]!);
  expect(turn.generated_ids).toEqual(turns[1]!.completionIds);
  expect(turn.reused_tokens).toBe(seen);
  expect(turn.prefill_tokens).toBe(turns[1]!.promptIds.length - seen);
  expect(warnings).toEqual([]);
  await conversation.close();
});

test("killed at any token of the second answer, sampled: it goes on to the same answer", async () => {
  const dir = mini.place();
  const greedy = await open({ dir });
  const before = await greedy.say("Hello!");
  await greedy.close();
  const sampling = { temperature: 3, seed: 3 };
  const conversation = await open({ dir, sampling, maxTokens: 14 });
  const copies: string[] = [];
  const seen = new Set<number>();
  const take = () => {
    const tokens = readFileSync(join(dir, "conversation.jsonl"), "utf8").split('"type":"token"').length;
    if (!seen.has(tokens)) copies.push(copyOf(dir));
    seen.add(tokens);
  };
  const whole = await conversation.say("Tell me more.", { onEvent: take });
  await conversation.close();
  expect(whole.generated_ids.length).toBe(14);
  expect(copies.length).toBeGreaterThanOrEqual(14);
  for (const copy of copies) {
    const { conversation, warnings } = await reopen(copy, { sampling, maxTokens: 14 });
    const unfinished = conversation.unfinished!;
    expect(unfinished.why).toBe("killed");
    const pieces: string[] = [];
    const turn = await conversation.continue({
      onPiece: (piece) => "text" in piece && pieces.push(piece.text),
    });
    expect(turn.generated_ids).toEqual(whole.generated_ids);
    expect(turn.finish_reason).toBe(whole.finish_reason);
    // The state saved after the first answer is used; the words of the second that are known are read, not generated.
    expect(turn.reused_tokens).toBe(before.prompt_tokens + before.generated_ids.length - 1);
    const known = unfinished.tokens >= 14 ? 0 : turn.prompt_tokens - turn.reused_tokens + unfinished.tokens;
    if (known > 0) expect(turn.prefill_tokens).toBe(known);
    expect(pieces.join("")).toBe(turn.thinking + turn.content);
    expect(warnings).toEqual([]);
    await conversation.close();
  }
});

test("killed while a state is saved: the older one serves, the leavings are removed", async () => {
  const dir = mini.place();
  const first = await open({ dir, thinking: false });
  await first.say("Hello!");
  const copy = copyOf(dir);
  await first.close();
  await writeFile(join(copy, "state.k3.4711.tmp"), "half a state");
  await appendFile(join(copy, "conversation.jsonl"), '{"type":"turn","messages":[{"ro');
  const { conversation, warnings } = await reopen(copy);
  expect((await readdir(copy)).sort()).toEqual(["conversation.jsonl", "lock", "state.k3"]);
  const turn = await conversation.say("What is two plus two?");
  expect(turn.content).toBe("Two plus two is four.");
  expect(turn.recomputed).toBeNull();
  expect(warnings).toEqual([]);
  await conversation.close();
});

test("a conversation without turns removes the leavings too, before it asks for space", async () => {
  const dir = mini.place();
  await mkdir(dir);
  await writeFile(join(dir, "state.k3.4711.tmp"), "half a state");
  const conversation = await open({ dir });
  expect((await readdir(dir)).sort()).toEqual(["conversation.jsonl", "lock"]);
  await conversation.close();
});

describe("a state that cannot be used is recomputed, and the user is told why and what it costs", () => {
  const { users, turns } = known("direct");
  const spoiled: [string, RegExp, (state: string) => Promise<void>][] = [
    ["missing", /no saved state/, (state) => unlink(state)],
    ["truncated", /truncated|bytes/, async (state) => truncate(state, readFileSync(state).length - 100)],
    ["damaged", /checksum/, async (state) => flip(state, -2000)],
    ["not a state", /not a state/, async (state) => writeFile(state, "something else altogether")],
    [
      "of an older version",
      /state.k3/,
      async (state) => writeFile(state, replaced(await readFile(state), '"version":1', '"version":0')),
    ],
    ["of fewer layers", /layers/, async (state) => saveWithLayers(state, 5)],
    ["of other words", /other words from token \d+/, async (state) => saveOtherWords(state)],
  ];
  for (const [what, reason, spoil] of spoiled) {
    test(what, async () => {
      const dir = mini.place();
      const first = await open({ dir, thinking: false });
      await first.say(users[0]!);
      await first.close();
      await spoil(join(dir, "state.k3"));
      const { conversation, warnings } = await reopen(dir);
      const history = turns[0]!.promptIds.length + turns[0]!.completionIds.length;
      expect(conversation.opened).toMatchObject({
        turns: 1,
        reused_tokens: 0,
        recompute: { tokens: history },
      });
      expect(conversation.opened.recompute!.reason).toMatch(reason);
      expect(conversation.opened.recompute!.seconds).toBeGreaterThan(0);
      expect(warnings).toHaveLength(1);
      expect(warnings[0]).toContain(`${history} tokens`);
      const turn = await conversation.say(users[1]!);
      expect(turn.generated_ids).toEqual(turns[1]!.completionIds);
      expect(turn.reused_tokens).toBe(0);
      expect(turn.prefill_tokens).toBe(turns[1]!.promptIds.length);
      expect(turn.recomputed?.reason).toMatch(reason);
      expect(warnings).toHaveLength(1);
      await conversation.close();
      const healed = await open({ dir });
      expect(healed.opened.recompute).toBeNull();
      await healed.close();
    });
  }

  async function saveWithLayers(state: string, layers: number): Promise<void> {
    const model = await Model.open({
      modelDir: mini.dir,
      layers,
      threads: 1,
      memory: 4e8,
      contextTokens: 256,
    });
    const session = model.session();
    await session.prefill(turns[0]!.promptIds);
    await session.save(state);
    await model.close();
  }

  async function saveOtherWords(state: string): Promise<void> {
    const session = mini.model.session();
    await session.prefill(turns[0]!.promptIds.with(5, 1));
    await session.save(state);
    session.close();
  }
});

describe("a beginning that changed is read again", () => {
  const changes: [string, RegExp, Partial<ConversationOpenOptions>][] = [
    ["system", /system text/, { system: "Be brief." }],
    ["tools", /tools/, { tools: MINIATURE_TOOLS }],
    ["thinking", /thinking/, { thinking: false }],
    ["effort", /effort/, { thinkingEffort: "low" }],
  ];
  for (const [what, reason, change] of changes) {
    test(what, async () => {
      const dir = mini.place();
      const first = await open({ dir });
      await first.say("Hello!");
      await first.close();
      const { conversation, warnings } = await reopen(dir, change);
      expect(conversation.opened.recompute?.reason).toMatch(reason);
      expect(warnings).toHaveLength(1);
      const turn = await conversation.say("And now?", { maxTokens: 6 });
      expect(turn.reused_tokens).toBe(0);
      const history = conversation.messages.slice(0, -1);
      await conversation.close();
      // The same messages in a conversation that began so give the same answer.
      const fresh = await open({ thinking: true, ...change });
      const same = await fresh.say(
        history.filter(({ role }) => role !== "system"),
        { maxTokens: 6 },
      );
      expect(turn.generated_ids).toEqual(same.generated_ids);
      await fresh.close();
      const again = await open({ dir });
      // What the miniature makes up is not always well formed, which is a reason of its own.
      expect(again.opened.turns).toBe(2);
      expect(again.opened.recompute?.reason ?? "").not.toMatch(reason);
      await again.close();
    });
  }
});

describe("a conversation file", () => {
  async function kept(): Promise<string> {
    const dir = mini.place();
    const conversation = await open({ dir, thinking: false });
    await conversation.say("Hello!");
    await conversation.close();
    return join(dir, "conversation.jsonl");
  }

  test("that is damaged before its end is refused and left as it is", async () => {
    const path = await kept();
    await flip(path, 60);
    const before = await readFile(path);
    await expect(open({ dir: join(path, "..") })).rejects.toMatchObject({
      code: "E_DATA",
      message: /damaged at byte 0/,
    });
    expect(await readFile(path)).toEqual(before);
  });

  test("of something else is refused and left as it is", async () => {
    const path = await kept();
    await writeFile(path, '{"id": 1}\n{"id": 2}\n');
    await expect(open({ dir: join(path, "..") })).rejects.toMatchObject({
      code: "E_DATA",
      message: /not a conversation/,
    });
    expect(await readFile(path, "utf8")).toBe('{"id": 1}\n{"id": 2}\n');
  });

  test("of a newer version is refused with both versions", async () => {
    const path = await kept();
    await writeFile(path, encodeRecord({ type: "setup", version: 2 }));
    await expect(open({ dir: join(path, "..") })).rejects.toMatchObject({
      code: "E_DATA",
      message: /version 2.*version 1/,
    });
  });

  test("with a torn end is kept up to its last whole record", async () => {
    const path = await kept();
    await truncate(path, readFileSync(path).length - 7);
    const { conversation } = await reopen(join(path, ".."));
    // The record that ended the turn is gone: the turn is complete all the same.
    expect(conversation.unfinished?.why).toBe("killed");
    expect((await conversation.continue()).content).toBe("Hi there!");
    await conversation.close();
  });
});

async function flip(path: string, at: number): Promise<void> {
  const bytes = readFileSync(path);
  const index = at < 0 ? bytes.length + at : at;
  bytes[index] = bytes[index]! ^ 0x40;
  writeFileSync(path, bytes);
}

function replaced(bytes: Buffer, from: string, to: string): Buffer {
  const at = bytes.indexOf(from);
  expect(at).toBeGreaterThan(0);
  bytes.write(to, at, "latin1");
  return bytes;
}

test("a state that cannot be saved costs time after a restart, not the conversation", async () => {
  const dir = mini.place();
  await mkdir(join(dir, "state.k3", "in the way"), { recursive: true });
  const { conversation, warnings } = await reopen(dir, { thinking: false });
  expect((await conversation.say("Hello!")).content).toBe("Hi there!");
  expect(warnings).toHaveLength(1);
  expect(warnings[0]).toContain("could not be saved");
  expect((await conversation.say("What is two plus two?")).content).toBe("Two plus two is four.");
  await conversation.close();
  const again = await reopen(dir);
  expect(again.conversation.messages).toHaveLength(4);
  expect(again.conversation.opened.recompute?.reason).toContain("cannot be used");
  await again.conversation.close();
});

test("without a directory nothing is written", async () => {
  const conversation = await open({ thinking: false });
  expect((await conversation.say("Hello!")).content).toBe("Hi there!");
  await conversation.close();
  expect(existsSync("undefined")).toBe(false);
});
