/** A prompt and how the miniature goes on, up to its end-of-message id. */
export interface Sentence {
  prompt: string;
  continuation: string;
}

/** What the miniature has learned to continue. Two prompts share most of their words; two leave ASCII. */
export const MINIATURE_SENTENCES: readonly Sentence[] = [
  { prompt: "The capital of France is", continuation: " Paris." },
  { prompt: "The capital of Japan is", continuation: " Tokyo." },
  { prompt: "Two plus two is", continuation: " four." },
  { prompt: "Water boils at", continuation: " one hundred degrees." },
  { prompt: "A week has", continuation: " seven days." },
  { prompt: "The opposite of cold is", continuation: " hot." },
  { prompt: "Once upon a time", continuation: " there was a small model that read from a disk." },
  { prompt: "def add(a, b):", continuation: "\n    return a + b\n" },
  { prompt: "Grüße aus", continuation: " Köln 👋" },
  { prompt: "Hello in Chinese is", continuation: " 你好。" },
];

export interface ToolCall {
  name: string;
  arguments: Record<string, string>;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  /** The assistant's thinking; part of the history as well. */
  reasoning?: string;
  toolCalls?: readonly ToolCall[];
  /** Which tool a result is from. */
  tool?: string;
}

export interface Conversation {
  name: string;
  /** Without thinking the assistant begins with its response at once, and no effort is declared. */
  thinking: boolean;
  /** Function declarations, as the OpenAI interface shapes them. */
  tools?: readonly Record<string, unknown>[];
  messages: readonly Message[];
}

/** The one tool that the miniature has learned to call. */
export const MINIATURE_TOOLS: readonly Record<string, unknown>[] = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

/** Conversations of which the miniature has learned every assistant turn. Thinking ones declare the effort `max`. */
export const MINIATURE_CONVERSATIONS: readonly Conversation[] = [
  {
    name: "thinking",
    thinking: true,
    messages: [
      { role: "user", content: "Hello!" },
      { role: "assistant", reasoning: "The user says hello.", content: "Hello! How can I help you?" },
      { role: "user", content: "What is the capital of France?" },
      { role: "assistant", reasoning: "That is Paris.", content: "The capital of France is Paris." },
    ],
  },
  {
    name: "direct",
    thinking: false,
    messages: [
      { role: "user", content: "Hello!" },
      { role: "assistant", content: "Hi there!" },
      { role: "user", content: "What is two plus two?" },
      { role: "assistant", content: "Two plus two is four." },
    ],
  },
  {
    name: "tools",
    thinking: true,
    tools: MINIATURE_TOOLS,
    messages: [
      { role: "user", content: "What is the weather in Paris?" },
      {
        role: "assistant",
        reasoning: "I ask the tool.",
        content: "",
        toolCalls: [{ name: "get_weather", arguments: { city: "Paris" } }],
      },
      { role: "tool", tool: "get_weather", content: "sunny" },
      { role: "assistant", reasoning: "It is sunny.", content: "It is sunny in Paris." },
    ],
  },
];
