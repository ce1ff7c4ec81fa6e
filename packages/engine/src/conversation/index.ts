export { Conversation } from "./conversation.ts";
export { conversationTokens } from "./log.ts";
export type {
  ConversationOpenOptions,
  FinishReason,
  Opened,
  Piece,
  Recomputation,
  Turn,
  TurnOptions,
  Unfinished,
} from "./types.ts";
