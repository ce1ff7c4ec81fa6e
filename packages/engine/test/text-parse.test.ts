import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  type AssistantEvent,
  AssistantParser,
  type ConversationOptions,
  createTokenizer,
  encodeConversation,
  type Message,
  parseAssistant,
  parseConversation,
} from "../src/text/index.ts";
import { madeUpRanks, specialsAfter } from "./text-made-up-vocabulary.ts";

const BASE = 3000;
const tokenizer = createTokenizer({
  ranks: madeUpRanks(3, BASE),
  baseTokens: BASE,
  specials: specialsAfter(BASE),
});
/** What a model would generate, written with markup. */
const ids = (markup: string) => tokenizer.encode(markup, { allowSpecial: true });
const parse = (markup: string, thinking = true) => parseAssistant(tokenizer, ids(markup), { thinking });

const FULL =
  "15% of 240 = 0.15 × 240 = 36.<|close|>think<|sep|><|open|>response<|sep|>15% of 240 is 36.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";

describe("a complete message", () => {
  test("thinking and answer", () => {
    expect(parse(FULL)).toEqual({
      thinking: "15% of 240 = 0.15 × 240 = 36.",
      content: "15% of 240 is 36.",
      toolCalls: [],
      unfinishedToolCall: null,
      finishReason: "stop",
      unfinished: null,
      name: null,
      problems: [],
    });
  });

  test("without thinking", () => {
    const output = parse("Paris.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", false);
    expect(output).toMatchObject({ thinking: "", content: "Paris.", finishReason: "stop", problems: [] });
  });

  test("with its own opening", () => {
    const output = parse(
      `<|open|>message role="assistant" name="K &quot;3&quot;"<|sep|><|open|>think<|sep|>${FULL}`,
    );
    expect(output).toMatchObject({ content: "15% of 240 is 36.", name: 'K "3"', problems: [] });
  });

  test("typed arguments", () => {
    const argument = (key: string, type: string, text: string) =>
      `<|open|>argument key="${key}" type="${type}"<|sep|>${text}<|close|>argument<|sep|>`;
    const output = parse(
      "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>" +
        `<|open|>call tool="f" index="1"<|sep|>${argument("s", "string", "1")}${argument("n", "number", "-2.5e3")}${argument("b", "boolean", "false")}` +
        `${argument("z", "null", "null")}${argument("o", "object", '{"k":[1]}')}${argument("a", "array", "[]")}${argument("__proto__", "object", '{"x":1}')}<|close|>call<|sep|>` +
        '<|open|>call tool="g" index="2"<|sep|><|open|>json type="object"<|sep|>{"x": 1}<|close|>json<|sep|><|close|>call<|sep|>' +
        "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
    );
    expect(output).toMatchObject({
      content: "",
      finishReason: "tool_calls",
      problems: [],
      unfinishedToolCall: null,
    });
    const args = output.toolCalls[0]!.function.arguments as Record<string, unknown>;
    expect(Object.entries(args)).toEqual([
      ["s", "1"],
      ["n", -2500],
      ["b", false],
      ["z", null],
      ["o", { k: [1] }],
      ["a", []],
      ["__proto__", { x: 1 }],
    ]);
    expect(Object.getPrototypeOf(args)).toBe(Object.prototype);
    expect(output.toolCalls[1]).toEqual({
      id: "g:2",
      type: "function",
      function: { name: "g", arguments: '{"x": 1}' },
    });
  });

  test("markup spelled in text is text", () => {
    const text = "say <|close|>think<|sep|> & <|end_of_msg|>";
    const generated = [
      ...tokenizer.encode(text),
      ...ids("<|close|>think<|sep|><|open|>response<|sep|>"),
      ...tokenizer.encode(text),
    ];
    expect(parseAssistant(tokenizer, generated)).toMatchObject({
      thinking: text,
      content: text,
      problems: [],
    });
  });

  test("the end of the sequence ends it too", () => {
    expect(parse("thought[EOS]")).toMatchObject({ thinking: "thought", content: "", finishReason: "stop" });
  });
});

describe("a message cut anywhere", () => {
  const tools =
    'why<|close|>think<|sep|><|open|>response<|sep|>Let me see 你好🚀.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>' +
    '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>';
  const all = ids(tools);

  test("shows only beginnings of the right texts, and no markup", () => {
    for (let cut = 0; cut < all.length; cut++) {
      const output = parseAssistant(tokenizer, all.slice(0, cut));
      expect("why".startsWith(output.thinking)).toBe(true);
      // A character that is cut shows as U+FFFD when no more ids come.
      expect("Let me see 你好🚀.".startsWith(output.content.replace(/\ufffd$/, ""))).toBe(true);
      expect(output.finishReason).toBe("length");
    }
  });

  test("a cap between <|close|> and <|sep|> leaves the thinking where it is", () => {
    for (const markup of ["thought<|close|>", "thought<|close|>th", "thought<|close|>think"]) {
      expect(parse(markup)).toMatchObject({
        thinking: "thought",
        content: "",
        finishReason: "length",
        unfinished: "think",
      });
    }
    expect(parse("thought<|close|>think<|sep|><|open|>resp")).toMatchObject({
      thinking: "thought",
      content: "",
      unfinished: "message",
    });
  });

  test("only thinking is never an answer", () => {
    expect(parse("I wonder")).toMatchObject({ thinking: "I wonder", content: "", finishReason: "length" });
    expect(parse("I wonder<|end_of_msg|>")).toMatchObject({
      thinking: "I wonder",
      content: "",
      finishReason: "stop",
    });
  });

  test("an unfinished call is told apart from finished ones", () => {
    const cut = ids(tools.slice(0, tools.indexOf("is<|close|>argument")));
    expect(parseAssistant(tokenizer, cut)).toMatchObject({
      toolCalls: [],
      unfinishedToolCall: { function: { name: "f", arguments: { city: "Par" } } },
      finishReason: "length",
      unfinished: "argument",
    });
  });

  test("events join to the output at every boundary", () => {
    for (let cut = 0; cut <= all.length; cut++) {
      const parser = new AssistantParser(tokenizer);
      const events: AssistantEvent[] = all.slice(0, cut).flatMap((id) => parser.push(id));
      events.push(...parser.end());
      const joined = (type: "thinking" | "content") =>
        events.map((event) => (event.type === type ? event.text : "")).join("");
      expect(joined("thinking")).toBe(parser.output.thinking);
      expect(joined("content")).toBe(parser.output.content);
      expect(events.flatMap((event) => (event.type === "tool-call" ? [event.call] : []))).toEqual(
        parser.output.toolCalls,
      );
      expect(events.some(({ type }) => type === "end")).toBe(cut === all.length);
    }
  });

  test("whole characters as they come", () => {
    const bytes = createTokenizer({
      ranks: Array.from({ length: 256 }, (_, byte): [Uint8Array, number] => [Uint8Array.of(byte), byte]),
      baseTokens: 256,
      specials: specialsAfter(256),
    });
    const parser = new AssistantParser(bytes);
    expect(
      bytes
        .encode("é你")
        .map((id) => parser.push(id).map((event) => (event.type === "thinking" ? event.text : event.type))),
    ).toEqual([[], ["é"], [], [], ["你"]]);
  });
});

describe("deviations are passed over, reported, and never turn thinking into an answer", () => {
  test.each<[string, string, object]>([
    [
      "the response opens within the thinking",
      "a<|open|>response<|sep|>b<|end_of_msg|>",
      { thinking: "a", content: "b" },
    ],
    [
      "the thinking opens again",
      "a<|close|>think<|sep|><|open|>response<|sep|>b<|open|>think<|sep|>c<|end_of_msg|>",
      { thinking: "ac", content: "b" },
    ],
    ["the response is not opened", "a<|close|>think<|sep|>b<|end_of_msg|>", { thinking: "a", content: "b" }],
    [
      "an unknown element",
      "a<|open|>note<|sep|>b<|close|>note<|sep|>c<|end_of_msg|>",
      { thinking: "abc", content: "" },
    ],
    [
      "a closing of what is not open",
      "a<|close|>response<|sep|>b<|end_of_msg|>",
      { thinking: "ab", content: "" },
    ],
    ["a separator alone", "a<|sep|>b<|end_of_msg|>", { thinking: "ab", content: "" }],
    [
      "an opening within an opening",
      "a<|open|>resp<|open|>note<|sep|>b<|end_of_msg|>",
      { thinking: "ab", content: "" },
    ],
    [
      "an opening that is malformed",
      'a<|open|>response x="<|sep|>b<|end_of_msg|>',
      { thinking: "ab", content: "" },
    ],
    [
      "another message",
      'a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|><|close|>message<|sep|><|open|>message role="user"<|sep|>c<|end_of_msg|>',
      { thinking: "a", content: "b" },
    ],
    [
      "a message of another role",
      '<|open|>message role="user"<|sep|>c<|close|>message<|sep|><|end_of_msg|>',
      { thinking: "", content: "" },
    ],
    [
      "ids after the end",
      "a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>c",
      { thinking: "a", content: "b" },
    ],
    [
      "a value of another type",
      'a<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="n" type="number"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|end_of_msg|>',
      { toolCalls: [{ id: "f:1", type: "function", function: { name: "f", arguments: { n: "x" } } }] },
    ],
    [
      "a call that its list closes over",
      'a<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|close|>tools<|sep|><|end_of_msg|>',
      { toolCalls: [], unfinishedToolCall: null },
    ],
    [
      "text among the calls",
      "a<|open|>tools<|sep|>b<|close|>tools<|sep|><|end_of_msg|>",
      { thinking: "a", content: "" },
    ],
  ])("%s", (_, markup, expected) => {
    const output = parse(markup);
    expect(output).toMatchObject({
      ...expected,
      finishReason: expect.stringMatching(/stop|tool_calls/) as string,
    });
    expect(output.problems.length).toBeGreaterThan(0);
  });

  test("any ids: thinking stays apart, and nothing throws", () => {
    const structure = [
      "<|open|>",
      "<|close|>",
      "<|sep|>",
      "think",
      "response",
      "tools",
      "call",
      "message",
      "argument",
      ' key="k"',
      "text",
      "<|end_of_msg|>",
    ];
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...structure), { maxLength: 40 }), (parts) => {
        const generated = parts.flatMap((part) => ids(part));
        const output = parseAssistant(tokenizer, [...tokenizer.encode("SECRET"), ...generated]);
        expect(output.thinking.startsWith("SECRET")).toBe(true);
        expect(output.content).not.toContain("SECRET");
      }),
      { numRuns: 500 },
    );
  });
});

describe("an encoded conversation parses back to itself", () => {
  const text = fc.oneof(
    fc.string({ unit: "binary", maxLength: 30 }),
    fc.constantFrom(
      "",
      '<|open|>message role="system"<|sep|>',
      "<|end_of_msg|>",
      '"<|sep|>&quot;&amp;',
      "\n```",
      "# Tools",
      "你好🚀",
    ),
  );
  const json = fc.jsonValue({ maxDepth: 2 }).map((value) => JSON.parse(JSON.stringify(value)) as unknown);
  const name = fc
    .option(text, { nil: undefined })
    .map((value) => (value === undefined ? {} : { name: value }));
  const toolName = text.filter((value) => value !== "");
  const tool = fc.dictionary(text, json, { maxKeys: 3 });
  const call = fc.record({
    function: fc.record({
      name: toolName,
      arguments: fc.oneof(text, fc.dictionary(text, json, { maxKeys: 3 })),
    }),
  });
  const message: fc.Arbitrary<Message> = fc.oneof(
    fc.tuple(text, name).map(([content, named]): Message => ({ role: "system", content, ...named })),
    fc.array(tool, { minLength: 1, maxLength: 2 }).map((tools): Message => ({ role: "system", tools })),
    fc.tuple(text, name).map(([content, named]): Message => ({ role: "user", content, ...named })),
    fc.tuple(text, text, name, fc.array(call, { maxLength: 2 })).map(
      ([content, reasoning_content, named, calls]): Message => ({
        role: "assistant",
        content,
        reasoning_content,
        ...named,
        ...(calls.length === 0 ? {} : { tool_calls: calls }),
      }),
    ),
    fc.tuple(text, text).map(([content, toolOf]): Message => ({ role: "tool", content, name: toolOf })),
  );
  const options: fc.Arbitrary<ConversationOptions> = fc
    .record({
      tools: fc.option(fc.array(tool, { minLength: 1, maxLength: 2 }), { nil: undefined }),
      thinkingEffort: fc.constantFrom("low", "medium", "high", "max"),
      generationPrompt: fc.boolean(),
      toolChoice: fc.constantFrom("none", "required", undefined),
      thinking: fc.boolean(),
    })
    .map(({ tools, toolChoice, thinking, thinkingEffort, generationPrompt }) => ({
      thinking,
      generationPrompt,
      ...(tools === undefined ? {} : { tools }),
      ...(toolChoice === undefined ? {} : { toolChoice }),
      ...(thinking ? { thinkingEffort } : {}),
    }));

  test("messages and options", () => {
    fc.assert(
      fc.property(fc.array(message, { maxLength: 5 }), options, (messages, given) => {
        const encoded = encodeConversation(tokenizer, messages, given);
        const parsed = parseConversation(tokenizer, encoded);
        expect(parsed.options).toEqual(given);
        const expected = messages.map((item) => {
          if (item.role !== "assistant") return item;
          const { reasoning_content, tool_calls, ...rest } = item;
          return {
            ...rest,
            ...(given.thinking ? { reasoning_content } : {}),
            ...(tool_calls
              ? {
                  tool_calls: tool_calls.map((one, at) => ({
                    id: `${one.function.name}:${at + 1}`,
                    type: "function",
                    ...one,
                  })),
                }
              : {}),
          };
        });
        expect(parsed.messages).toEqual(expected);
        expect(encodeConversation(tokenizer, parsed.messages, parsed.options)).toEqual(encoded);
      }),
      { numRuns: process.env["K3_NIGHTLY"] === "1" ? 5000 : 400 },
    );
  });

  test.each<[string, string, RegExp]>([
    ["text before a message", "x<|end_of_msg|>", /message 1 does not begin/],
    [
      "an unknown role",
      '<|open|>message role="x"<|sep|><|close|>message<|sep|><|end_of_msg|>',
      /message 1 has the role "x"/,
    ],
    ["an unfinished message", '<|open|>message role="user"<|sep|>hello', /message 1 is unfinished/],
    [
      "markup in a user's text",
      '<|open|>message role="user"<|sep|><|open|>b<|sep|><|close|>message<|sep|><|end_of_msg|>',
      /has markup/,
    ],
    [
      "an unknown system message",
      '<|open|>message role="system" type="y"<|sep|><|close|>message<|sep|><|end_of_msg|>',
      /type "y"/,
    ],
  ])("refused: %s", (_, markup, expected) => {
    expect(() => parseConversation(tokenizer, ids(markup))).toThrow(
      expect.objectContaining({
        code: "E_DATA",
        message: expect.stringMatching(expected) as string,
      }) as Error,
    );
  });
});
