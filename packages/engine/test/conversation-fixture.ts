import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MINIATURE_CONVERSATIONS, makeMiniature, miniatureSamples, type Sample } from "@k3/testkit";
import { afterAll, beforeAll } from "vitest";
import { loadTokenizer, Model, type Tokenizer } from "../src/index.ts";

/** The miniature, open, with its tokenizer; for all tests of a file. */
export interface Miniature {
  dir: string;
  model: Model;
  tokenizer: Tokenizer;
  /** A fresh path for a conversation. */
  place(): string;
}

/** Opens it before the tests and cleans up after them. */
export function miniature(): Miniature {
  const all = {} as Miniature;
  let root: string;
  let places = 0;
  beforeAll(async () => {
    root = await mkdtemp(join(tmpdir(), "k3-conversation-"));
    all.dir = join(root, "model");
    await makeMiniature(all.dir);
    all.model = await Model.open({
      modelDir: all.dir,
      threads: 1,
      sessions: 4,
      contextTokens: 1024,
      memory: 4e8,
    });
    all.tokenizer = await loadTokenizer(all.dir);
    all.place = () => join(root, `conversation-${++places}`);
  }, 300_000);
  afterAll(async () => {
    await all.model?.close();
    await rm(root, { recursive: true, force: true });
  });
  return all;
}

/** What the miniature was made to know, from its own encoder: prompt and answer of each turn as ids and text. */
export function known(name: "thinking" | "direct" | "tools"): {
  conversation: (typeof MINIATURE_CONVERSATIONS)[number];
  users: string[];
  turns: Sample[];
} {
  const conversation = MINIATURE_CONVERSATIONS.find((one) => one.name === name)!;
  const users = conversation.messages.flatMap(({ role, content }) => (role === "user" ? [content] : []));
  const turns = miniatureSamples().filter((sample) => sample.name.startsWith(`${name} turn `));
  return { conversation, users, turns };
}
