import { type BytePairs, learnBytePairs } from "../byte-pairs.ts";
import { BASE_TOKENS, END_OF_MESSAGE } from "./architecture.ts";
import { encodeSegments, renderSegments, turnsOf } from "./chat.ts";
import { PROSE } from "./prose.ts";
import { MINIATURE_CONVERSATIONS, MINIATURE_SENTENCES } from "./sentences.ts";

/** Something that the miniature continues greedily, as ids and as text (special tokens by their names). */
export interface Sample {
  /** `sentence 0`, ...; `thinking turn 1`, ... */
  name: string;
  prompt: string;
  promptIds: number[];
  completion: string;
  /** Ends with the end-of-message id. */
  completionIds: number[];
}

/** How much more what is learned counts than prose when byte pairs are learned. */
const KNOWN_WEIGHT = 4;

let vocabulary: BytePairs | undefined;

/** The miniature's byte pairs; the same for every seed. */
export function miniatureVocabulary(): BytePairs {
  if (vocabulary === undefined) {
    // What is not ASCII is left out, so that its characters span tokens, as rare ones do in the real vocabulary.
    const sentences = MINIATURE_SENTENCES.map(({ prompt, continuation }) => `${prompt}${continuation}\n`);
    const chats = MINIATURE_CONVERSATIONS.flatMap(turnsOf).flatMap(({ prompt, completion }) =>
      [...prompt, ...completion].map((segment) => ("text" in segment ? segment.text : "\n")),
    );
    const ascii = sentences.join("").replaceAll(/[^\x00-\x7f]/g, "\n");
    const known = (ascii + chats.join("")).repeat(KNOWN_WEIGHT);
    vocabulary = learnBytePairs(known + PROSE, BASE_TOKENS);
  }
  return vocabulary;
}

/** Everything that the miniature has learned: prompts and greedy completions, the same for every seed. */
export function miniatureSamples(): Sample[] {
  const pairs = miniatureVocabulary();
  const sentences = MINIATURE_SENTENCES.map(({ prompt, continuation }, i) => ({
    name: `sentence ${i}`,
    prompt,
    promptIds: pairs.encode(prompt),
    completion: `${continuation}<|end_of_msg|>`,
    completionIds: [...pairs.encode(continuation), END_OF_MESSAGE],
  }));
  const turns = MINIATURE_CONVERSATIONS.flatMap((conversation) =>
    turnsOf(conversation).map(({ prompt, completion }, i) => ({
      name: `${conversation.name} turn ${i + 1}`,
      prompt: renderSegments(prompt),
      promptIds: encodeSegments(prompt, pairs),
      completion: renderSegments(completion),
      completionIds: encodeSegments(completion, pairs),
    })),
  );
  return [...sentences, ...turns];
}
