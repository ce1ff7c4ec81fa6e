import { Conversation, censusPath, conversationTokens, loadTokenizer, Model } from "@k3/engine";
import { talkThroughPipe } from "../chat/pipe.ts";
import { isTerminal, talkInTerminal } from "../chat/terminal.ts";
import { readTools } from "../chat/tools-file.ts";
import { flag, text, whole } from "../options.ts";
import { modelOptions, samplingOf } from "../run-options.ts";
import { command } from "./command.ts";

/** Room for questions and answers beyond what is kept and what one answer may take. */
const ROOM = 3072;

export const chatCommand = command({
  name: "chat <model_dir>",
  describe: "talk with the model: in a terminal, or a line at a time from standard input",
  options: (yargs) =>
    modelOptions(yargs)
      .option("system", text("system", "how the model should behave, said before everything else"))
      .option(
        "tools",
        text("tools", "a JSON file with the tools that the model may call, as in the OpenAI API"),
      )
      .option("think", flag("think before each answer; --no-think answers at once. Thinking if not given"))
      .option("thinking-effort", {
        choices: ["low", "medium", "high", "max"] as const,
        requiresArg: true,
        describe: "how much to think; max if not given",
      })
      .option(
        "conversation",
        text(
          "conversation",
          "a directory to keep the conversation in and to go on from; without it nothing is kept",
        ),
      )
      .option("generate", {
        ...whole("generate", "tokens of one answer at most", { min: 1, max: 1_048_576 }),
        default: "1024",
      })
      .option(
        "context",
        whole(
          "context",
          "tokens that the whole conversation may have; 4096, or room for more when it is kept",
          {
            min: 1,
            max: 1_048_576,
          },
        ),
      ),
  run: async (args, context) => {
    const { signal } = context;
    const { onEvent } = context.output;
    const tools = args.tools === undefined ? undefined : await readTools(args.tools);
    const tokenizer = await loadTokenizer(args.model_dir);
    const kept = args.conversation === undefined ? 0 : await conversationTokens(args.conversation);
    const model = await Model.open({
      modelDir: args.model_dir,
      trunkDir: args.trunk,
      memory: args.memory,
      threads: args.threads,
      chunk: args.chunk,
      census: args.census ? censusPath(args.model_dir) : undefined,
      contextTokens: args.context ?? kept + args.generate! + ROOM,
      signal,
      onEvent,
    });
    try {
      const conversation = await Conversation.open({
        model,
        tokenizer,
        dir: args.conversation,
        system: args.system,
        tools,
        thinking: args.think,
        thinkingEffort: args.thinkingEffort,
        sampling: samplingOf(args),
        maxTokens: args.generate,
        onEvent,
      });
      try {
        const talk = isTerminal(context) ? talkInTerminal : talkThroughPipe;
        const turns = await talk(conversation, context, { quiet: args.quiet === true });
        const { layers, revision, configSha256: config_sha256 } = model;
        const result = {
          turns,
          conversation: args.conversation ?? null,
          model: { layers, revision, config_sha256 },
        };
        context.output.result("chat", result, []);
      } finally {
        await conversation.close();
      }
    } finally {
      await model.close();
    }
  },
});
