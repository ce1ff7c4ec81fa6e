import type { SamplerOptions } from "@k3/engine";
import type { Argv } from "yargs";
import { flag, idList, memory, real, text, texts, whole } from "./options.ts";

/** The options that `run` and `chat` share: where the weights are, what they may use, how tokens are drawn. */
export function modelOptions<T>(yargs: Argv<T>) {
  return yargs
    .positional("model_dir", { type: "string", demandOption: true, describe: "the checkpoint" })
    .option(
      "trunk",
      text("trunk", "its packed trunk; without it the dense weights are read from the checkpoint"),
    )
    .option("memory", memory("the most that the whole process may hold in memory, or auto"))
    .option("threads", whole("threads", "computing threads; all cores if not given", { min: 1, max: 1024 }))
    .option("chunk", {
      ...whole("chunk", "prompt tokens taken through the model together", { min: 1, max: 4096 }),
      default: "128",
    })
    .option("census", {
      ...flag(
        "count in the checkpoint's directory which experts are asked for, and prefer the usual ones in the cache",
      ),
      default: true,
    })
    .option("temperature", {
      ...real("temperature", "0 takes the likeliest token", { min: 0, max: 100 }),
      default: "0",
    })
    .option("top-p", {
      ...real("top-p", "sample from the likeliest tokens of this total probability", { min: 0, max: 1 }),
      default: "1",
    })
    .option("min-p", {
      ...real("min-p", "and of at least this share of the likeliest one's", { min: 0, max: 1 }),
      default: "0",
    })
    .option("repeat-penalty", {
      ...real("repeat-penalty", "divides the chance of tokens seen", { min: 0.01, max: 100 }),
      default: "1",
    })
    .option("seed", whole("seed", "makes sampling repeatable", { min: 0 }));
}

type Parsed = Awaited<ReturnType<typeof modelOptions<unknown>>["argv"]>;

/** How tokens are drawn, from the options that were given. */
export function samplingOf(
  args: Pick<Parsed, "temperature" | "topP" | "minP" | "repeatPenalty" | "seed">,
): SamplerOptions {
  const { temperature, topP, minP, repeatPenalty, seed } = args;
  return { temperature, topP, minP, repeatPenalty, seed };
}

export function runOptions<T>(yargs: Argv<T>) {
  return modelOptions(yargs)
    .option("prompt", text("prompt", "the text to continue"))
    .option("prompt-file", text("prompt-file", "a file whose bytes are the text to continue"))
    .option("ids", idList("ids", "token ids to continue; needs no tokenizer files"))
    .option("generate", {
      ...whole("generate", "tokens to generate at most", { min: 0, max: 1_048_576 }),
      default: "16",
    })
    .option("layers", whole("layers", "run only the first N layers, then the model's own end", { min: 1 }))
    .option("stop", texts("stop", "stop where this text would come"))
    .option("ignore-eos", flag("do not stop at the model's end id"))
    .option("logprobs", whole("logprobs", "report the K likeliest tokens of each step", { min: 0, max: 100 }))
    .option("state", text("state", "continue from this state file if it exists, and save the state to it"))
    .option(
      "dump-logits",
      text("dump-logits", "write the logits of the last prompt position as little-endian float32"),
    )
    .option(
      "trace-experts",
      text("trace-experts", "write the chosen experts of every layer and position as JSON"),
    )
    .conflicts({ prompt: ["prompt-file", "ids"], "prompt-file": ["ids"] });
}
