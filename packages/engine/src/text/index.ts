export { canonicalJson } from "./canonical-json.ts";
export { conversationSegments, encodeConversation, refuseMedia, renderConversation } from "./chat.ts";
export type {
  AssistantMessage,
  ConversationOptions,
  Message,
  MessageContent,
  OtherPart,
  SystemMessage,
  TextPart,
  ThinkingEffort,
  ToolCall,
  ToolDeclaration,
  ToolMessage,
  UserMessage,
} from "./messages.ts";
export {
  type AssistantEvent,
  type AssistantOutput,
  AssistantParser,
  type ParseOptions,
  parseAssistant,
} from "./parse-assistant.ts";
export { type ParsedConversation, parseConversation } from "./parse-conversation.ts";
export type { ParsedToolCall } from "./parse-tool-call.ts";
export {
  createSampler,
  type Sampler,
  type SamplerOptions,
  type TokenLogprob,
  topLogprobs,
} from "./sampling.ts";
export type { Segment } from "./segments.ts";
export { createStopMatcher, type StopMatcher, type StopStep } from "./stop.ts";
export {
  createTokenizer,
  type EncodeOptions,
  loadTokenizer,
  type StreamingDecoder,
  type Tokenizer,
  type TokenizerOptions,
} from "./tokenizer.ts";
export { RELEASED_VOCABULARY } from "./vocabulary.ts";
