import { z } from "zod";

/**
 * What conversation.jsonl holds, one record a line (a Journal of @k3/stage): a setup first, then turns. A turn is opened by the
 * messages said, goes on with one record per generated token and is ended by the assistant's message; `continue` opens
 * the last one again. `reset` forgets all turns before it.
 */
export const VERSION = 1;

const json = z.record(z.string(), z.unknown());
const content = z.union([z.string(), z.array(z.looseObject({ type: z.string() }))]);
const call = z.object({
  id: z.string().optional(),
  type: z.literal("function").optional(),
  function: z.object({ name: z.string(), arguments: z.union([z.string(), json]) }),
});

const assistant = z.object({
  role: z.literal("assistant"),
  content: content.nullish(),
  reasoning_content: z.string().nullish(),
  name: z.string().optional(),
  tool_calls: z.array(call).nullish(),
});

const message = z.discriminatedUnion("role", [
  z.object({
    role: z.literal("system"),
    content: content.nullish(),
    name: z.string().optional(),
    tools: z.array(json).optional(),
  }),
  z.object({ role: z.literal("user"), content, name: z.string().optional() }),
  assistant,
  z.object({
    role: z.literal("tool"),
    content,
    tool_call_id: z.string().optional(),
    name: z.string().optional(),
  }),
]);

const state = z.string().regex(/^[0-9a-f]{16}$/);
const count = z.int().nonnegative();
const seconds = z.number().nonnegative();

export const recordSchema = z.discriminatedUnion("type", [
  z.object({
    type: z.literal("setup"),
    version: z.literal(VERSION),
    model: z.object({ config_sha256: z.string(), revision: z.string().nullable() }),
    system: z.string().nullable(),
    tools: z.array(json),
    thinking: z.boolean(),
    thinking_effort: z.enum(["low", "medium", "high", "max"]),
    /** The generator of the sampler: its seed (64 bits, decimal) and its state. */
    seed: z.string().regex(/^\d{1,20}$/),
    sampler: state,
  }),
  z.object({
    type: z.literal("turn"),
    messages: z.array(message),
    prompt_tokens: count,
    max_tokens: count,
  }),
  z.object({ type: z.literal("token"), id: count, sampler: state.optional() }),
  z.object({ type: z.literal("continue"), max_tokens: count }),
  z.object({
    type: z.literal("end"),
    finish_reason: z.enum(["stop", "tool_calls", "length", "interrupted"]),
    message: assistant,
    prefill: z.object({ tokens: count, seconds }),
    decode: z.object({ tokens: count, seconds }),
  }),
  z.object({ type: z.literal("reset") }),
]);

export type ConversationRecord = z.infer<typeof recordSchema>;
export type SetupRecord = Extract<ConversationRecord, { type: "setup" }>;
