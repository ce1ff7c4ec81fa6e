// The miniature's own encoder and chat format are a second implementation, written apart from this one.

import {
  MINIATURE_CONVERSATIONS,
  MINIATURE_SENTENCES,
  MINIATURE_SPECIALS,
  miniatureSamples,
  miniatureVocabulary,
} from "@k3/testkit";
import { describe, expect, test } from "vitest";
import { createTokenizer, encodeConversation, type Message, parseAssistant } from "../src/text/index.ts";
import { generator, randomText } from "./text-made-up-vocabulary.ts";

const pairs = miniatureVocabulary();
const tokenizer = createTokenizer({
  ranks: [...pairs.ranks].map(([token, rank]) => [Uint8Array.from(Buffer.from(token, "latin1")), rank]),
  baseTokens: pairs.ranks.size,
  specials: MINIATURE_SPECIALS,
});

/** Outside of these blocks Unicode versions differ, which the miniature's encoder, unlike ours, leaves to Node. */
const OTHERS = /[^\0-\u07ff\u3000-\u9fff]/gu;

test("its sentences, and random text", () => {
  const random = generator(29);
  const texts = [
    ...MINIATURE_SENTENCES.map(({ prompt, continuation }) => prompt + continuation),
    ...Array.from({ length: 500 }, () => randomText(random, 20).replace(OTHERS, "")),
  ];
  for (const text of texts) expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(pairs.encode(text));
});

describe("its conversations", () => {
  for (const { name, thinking, tools, messages } of MINIATURE_CONVERSATIONS) {
    test(name, () => {
      const samples = miniatureSamples().filter((sample) => sample.name.startsWith(`${name} turn `));
      const conversation = messages.map((message): Message => {
        if (message.role === "tool") return { role: "tool", content: message.content, name: message.tool! };
        if (message.role !== "assistant") return { role: message.role, content: message.content };
        return {
          role: "assistant",
          content: message.content,
          reasoning_content: message.reasoning,
          tool_calls: message.toolCalls?.map((call) => ({ function: call })),
        };
      });
      const turns = conversation.flatMap((message, at) =>
        message.role === "assistant" ? [{ message, at }] : [],
      );
      expect(samples).toHaveLength(turns.length);
      for (const [turn, { message, at }] of turns.entries()) {
        const { promptIds, completionIds } = samples[turn]!;
        expect(encodeConversation(tokenizer, conversation.slice(0, at), { thinking, tools })).toEqual(
          promptIds,
        );
        const output = parseAssistant(tokenizer, completionIds, { thinking });
        expect(output.problems).toEqual([]);
        expect(output.content).toBe(message.content);
        expect(output.thinking).toBe(message.reasoning_content ?? "");
        expect(output.toolCalls.map((call) => call.function)).toEqual(
          (message.tool_calls ?? []).map((call) => call.function),
        );
        expect(output.finishReason).toBe(output.toolCalls.length > 0 ? "tool_calls" : "stop");
      }
    });
  }
});
