// Expected strings are written out by hand from the description of the format (docs/tokenizer-and-chat.md).
import { describe, expect, test } from "vitest";
import {
  type ConversationOptions,
  canonicalJson,
  createTokenizer,
  encodeConversation,
  type Message,
  refuseMedia,
  renderConversation,
} from "../src/text/index.ts";
import { madeUpRanks, specialsAfter } from "./text-made-up-vocabulary.ts";

const BASE = 3000;
const tokenizer = createTokenizer({
  ranks: madeUpRanks(3, BASE),
  baseTokens: BASE,
  specials: specialsAfter(BASE),
});

const bare: ConversationOptions = { thinking: false, generationPrompt: false };
const EFFORT =
  '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=max`.<|close|>message<|sep|><|end_of_msg|>';

const usage = (message: string | RegExp) =>
  expect.objectContaining({
    code: "E_USAGE",
    message: typeof message === "string" ? expect.stringContaining(message) : expect.stringMatching(message),
  }) as Error;

describe("rendered conversations", () => {
  test("a question, by default with thinking at max and the generation prompt", () => {
    expect(renderConversation([{ role: "user", content: "hello" }])).toBe(
      `${EFFORT}<|open|>message role="user"<|sep|>hello<|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>`,
    );
  });

  test("without thinking the response is opened", () => {
    expect(renderConversation([{ role: "user", content: "hello" }], { thinking: false })).toBe(
      '<|open|>message role="user"<|sep|>hello<|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>response<|sep|>',
    );
  });

  test("the thinking effort is stated", () => {
    expect(renderConversation([], { thinkingEffort: "low", generationPrompt: false })).toBe(
      EFFORT.replace("=max", "=low"),
    );
  });

  test("system and user with names; parts of text are joined", () => {
    const messages: Message[] = [
      { role: "system", content: "Be brief." },
      {
        role: "user",
        name: 'A "&" B',
        content: [
          { type: "text", text: "one " },
          { type: "text", text: "two" },
        ],
      },
    ];
    expect(renderConversation(messages, bare)).toBe(
      '<|open|>message role="system"<|sep|>Be brief.<|close|>message<|sep|><|end_of_msg|>' +
        '<|open|>message role="user" name="A &quot;&amp;&quot; B"<|sep|>one two<|close|>message<|sep|><|end_of_msg|>',
    );
  });

  test("an assistant's thinking is there even when empty, and not at all without thinking", () => {
    const messages: Message[] = [
      { role: "assistant", content: "Paris.", reasoning_content: "easy" },
      { role: "assistant", content: "Yes." },
    ];
    const message = (body: string) =>
      `<|open|>message role="assistant"<|sep|>${body}<|close|>message<|sep|><|end_of_msg|>`;
    expect(renderConversation(messages, { generationPrompt: false })).toBe(
      EFFORT +
        message(
          "<|open|>think<|sep|>easy<|close|>think<|sep|><|open|>response<|sep|>Paris.<|close|>response<|sep|>",
        ) +
        message(
          "<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>",
        ),
    );
    expect(renderConversation(messages, bare)).toBe(
      message("<|open|>response<|sep|>Paris.<|close|>response<|sep|>") +
        message("<|open|>response<|sep|>Yes.<|close|>response<|sep|>"),
    );
  });

  test("tools are declared first, compact and with sorted keys", () => {
    const tools = [
      {
        type: "function",
        function: {
          name: "météo",
          description: "a\nb",
          parameters: { type: "object", b: 1, a: [true, null, 1.5] },
        },
      },
    ];
    expect(renderConversation([], { ...bare, tools })).toBe(
      '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n' +
        '[{"function":{"description":"a\\nb","name":"météo","parameters":{"a":[true,null,1.5],"b":1,"type":"object"}},"type":"function"}]' +
        "\n```<|close|>message<|sep|><|end_of_msg|>",
    );
    expect(renderConversation([], { ...bare, tools: [] })).toBe("");
  });

  test("tools that come later", () => {
    expect(renderConversation([{ role: "system", tools: [{ name: "f" }] }], bare)).toBe(
      '<|open|>message role="system" type="tool-declare"<|sep|>## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n```json\n[{"name":"f"}]\n```<|close|>message<|sep|><|end_of_msg|>',
    );
  });

  test("calls: a mapping becomes typed arguments, a text stays a text", () => {
    const message: Message = {
      role: "assistant",
      content: null,
      tool_calls: [
        {
          id: "c1",
          type: "function",
          function: { name: "f", arguments: { s: 'a"b', n: 1.5, b: true, z: null, o: { k: [1] }, a: ["é"] } },
        },
        { id: "c2", type: "function", function: { name: "g", arguments: '{"x": 1}' } },
        { function: { name: "h", arguments: {} } },
      ],
    };
    const argument = (key: string, type: string, value: string) =>
      `<|open|>argument key="${key}" type="${type}"<|sep|>${value}<|close|>argument<|sep|>`;
    expect(renderConversation([message], bare)).toBe(
      '<|open|>message role="assistant"<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>' +
        `<|open|>call tool="f" index="1"<|sep|>${argument("s", "string", 'a"b')}${argument("n", "number", "1.5")}${argument("b", "boolean", "true")}` +
        `${argument("z", "null", "null")}${argument("o", "object", '{"k":[1]}')}${argument("a", "array", '["é"]')}<|close|>call<|sep|>` +
        '<|open|>call tool="g" index="2"<|sep|><|open|>json type="object"<|sep|>{"x": 1}<|close|>json<|sep|><|close|>call<|sep|>' +
        '<|open|>call tool="h" index="3"<|sep|><|close|>call<|sep|>' +
        "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
    );
  });

  const calls: Message = {
    role: "assistant",
    tool_calls: ["a", "b"].map((id) => ({ id, function: { name: `tool_${id}`, arguments: "{}" } })),
  };
  const results = (messages: Message[]) =>
    [
      ...renderConversation(messages, bare).matchAll(
        /role="tool" tool="([^"]*)" index="(\d+)"<\|sep\|>(.*?)<\|close\|>/g,
      ),
    ].map(([, tool, index, text]) => `${index} ${tool} ${text}`);

  test("results stand in the order of the calls when all ids resolve", () => {
    const [second, first]: Message[] = [
      { role: "tool", tool_call_id: "b", content: "B" },
      { role: "tool", tool_call_id: "a", content: "A" },
    ];
    expect(results([calls, second!, first!])).toEqual(["1 tool_a A", "2 tool_b B"]);
    const unknown: Message = { role: "tool", tool_call_id: "x", name: "other", content: "X" };
    expect(results([calls, second!, unknown, first!])).toEqual(["1 tool_b B", "2 other X", "3 tool_a A"]);
  });

  test("the index counts from the last assistant message, over other messages", () => {
    const result = (content: string): Message => ({ role: "tool", name: "t", content });
    const user: Message = { role: "user", content: "wait" };
    expect(results([calls, result("1"), user, result("2"), calls, result("3")])).toEqual([
      "1 t 1",
      "2 t 2",
      "1 t 3",
    ]);
  });

  test.each([
    [
      "required",
      "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    ],
    [
      "none",
      "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
    ],
  ] as const)("tool choice %s comes after the messages", (toolChoice, text) => {
    expect(renderConversation([{ role: "user", content: "q" }], { thinking: false, toolChoice })).toBe(
      '<|open|>message role="user"<|sep|>q<|close|>message<|sep|><|end_of_msg|>' +
        `<|open|>message role="system" type="tool-choice"<|sep|>${text}<|close|>message<|sep|><|end_of_msg|>` +
        '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>',
    );
  });
});

describe("encoded conversations", () => {
  test('structure is special tokens; tag, attribute name, =", value and " are encoded apart', () => {
    const id = (literal: string) => tokenizer.specials.get(literal)!;
    const text = (...parts: string[]) => parts.flatMap((part) => tokenizer.encode(part));
    expect(encodeConversation(tokenizer, [{ role: "user", name: "é&", content: "hello" }], bare)).toEqual([
      id("<|open|>"),
      ...text("message", " role", '="', "user", '"', " name", '="', "é&amp;", '"'),
      id("<|sep|>"),
      ...text("hello"),
      id("<|close|>"),
      ...text("message"),
      id("<|sep|>"),
      id("<|end_of_msg|>"),
    ]);
  });

  test("nothing that a user can fill in becomes structure", () => {
    const attack = `${[...tokenizer.specials.keys()].join("")}"<|sep|>`;
    const messages = (text: string): Message[] => [
      { role: "system", content: text, name: text },
      { role: "system", tools: [{ [text]: text }] },
      { role: "user", content: [{ type: "text", text }], name: text },
      {
        role: "assistant",
        content: text,
        reasoning_content: text,
        name: text,
        tool_calls: [
          { function: { name: text, arguments: { [text]: text, nested: [text] } } },
          { function: { name: text, arguments: text } },
        ],
      },
      { role: "tool", name: text, content: text },
    ];
    const options = (text: string) => ({ tools: [{ name: text, [text]: [text] }] });
    const structure = (text: string) =>
      encodeConversation(tokenizer, messages(text), options(text)).filter((id) => id >= BASE);
    expect(structure(attack)).toEqual(structure("x"));
  });

  test("a call with very many arguments", () => {
    const args = Object.fromEntries(Array.from({ length: 20_000 }, (_, at) => [`k${at}`, at]));
    const messages: Message[] = [
      { role: "assistant", tool_calls: [{ function: { name: "f", arguments: args } }] },
    ];
    const open = tokenizer.specials.get("<|open|>");
    // One opening per argument, and those of message, response, tools and call.
    expect(encodeConversation(tokenizer, messages, bare).filter((id) => id === open)).toHaveLength(20_004);
  });

  test("a vocabulary without the special tokens is refused", () => {
    const plain = createTokenizer({ ranks: madeUpRanks(3, 300), baseTokens: 300, specials: {} });
    expect(() => encodeConversation(plain, [])).toThrow(
      expect.objectContaining({ code: "E_CONFIG" }) as Error,
    );
  });
});

describe("refused", () => {
  const encode =
    (messages: unknown[], options: object = {}) =>
    () =>
      encodeConversation(tokenizer, messages as Message[], options);

  test.each(["image_url", "input_audio", "video_url", "file"])("a part of type %s", (type) => {
    const content = [
      { type: "text", text: "what is this?" },
      { type, [type]: { url: "data:image/png;base64,AAAA" } },
    ];
    expect(encode([{ role: "user", content }])).toThrow(
      usage(`message 0 has a part of type "${type}"; images and other media are not supported`),
    );
  });

  test("ids that stand for an image", () => {
    expect(() => refuseMedia(tokenizer, [5, BASE + 21])).toThrow(
      usage("<|media_pad|>, which stands for an image"),
    );
    expect(() =>
      refuseMedia(tokenizer, encodeConversation(tokenizer, [{ role: "user", content: "<|media_pad|>" }])),
    ).not.toThrow();
  });

  test.each<[string, unknown[], object, RegExp]>([
    ["a response format", [], { responseFormat: { type: "json_object" } }, /responseFormat "json_object"/],
    ["an unknown effort", [], { thinkingEffort: "extreme" }, /thinkingEffort is "extreme"/],
    ["a tool choice by name", [], { toolChoice: { type: "function" } }, /toolChoice/],
    ["an unknown role", [{ role: "developer", content: "x" }], {}, /message 0 has the role "developer"/],
    ["content of no known shape", [{ role: "user", content: 5 }], {}, /message 0/],
    ["a text part without text", [{ role: "user", content: [{ type: "text" }] }], {}, /without text/],
    [
      "tools and content in one message",
      [{ role: "system", content: "x", tools: [{}] }],
      {},
      /declares tools and has content/,
    ],
    [
      "a result of an unknown tool",
      [{ role: "tool", content: "x", tool_call_id: "?" }],
      {},
      /message 0 is the result of an unknown tool/,
    ],
    [
      "arguments that are a list",
      [{ role: "assistant", tool_calls: [{ function: { name: "f", arguments: [1] } }] }],
      {},
      /neither a mapping/,
    ],
    [
      "an argument without a JSON form",
      [{ role: "assistant", tool_calls: [{ function: { name: "f", arguments: { x: 1n } } }] }],
      {},
      /JSON form/,
    ],
    ["a call without a function", [{ role: "assistant", tool_calls: [{}] }], {}, /no function name/],
    ["a tool without a JSON form", [], { tools: [{ f: () => 1 }] }, /no JSON form/],
  ])("%s", (_, messages, options, message) => {
    expect(encode(messages, options)).toThrow(usage(message));
  });
});

describe("canonical JSON", () => {
  test("keys are ordered by code point, not by UTF-16 unit", () => {
    expect(canonicalJson({ "\u{1f525}": 1, "\uff5e": 2, b: 3, a: 4, ab: 5, "10": 6, "9": 7 })).toBe(
      '{"10":6,"9":7,"a":4,"ab":5,"b":3,"\uff5e":2,"\u{1f525}":1}',
    );
  });

  test("cycles are refused", () => {
    const cycle: Record<string, unknown> = {};
    cycle["self"] = cycle;
    expect(() => canonicalJson(cycle)).toThrow(usage("in a cycle"));
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, 1n, () => 1, Symbol("x")])("%s is refused", (value) => {
    expect(() => canonicalJson([value])).toThrow(usage("no JSON form"));
  });
});
