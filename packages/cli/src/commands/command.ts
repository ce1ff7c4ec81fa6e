import type { ArgumentsCamelCase, Argv, CommandModule } from "yargs";
import type { Context } from "../context.ts";

/** What every command also gets from the global options. */
export interface Common {
  json: boolean | undefined;
  quiet: boolean | undefined;
  debug: boolean | undefined;
}

/** A command: how it is written, its options, and what it does with them. Arguments are typed by the builder. */
export function command<A>(definition: {
  name: string;
  describe: string;
  options: (yargs: Argv<Common>) => Argv<A>;
  run: (args: ArgumentsCamelCase<A>, context: Context) => Promise<void>;
}): (context: Context) => CommandModule<Common, A> {
  return (context) => ({
    command: definition.name,
    describe: definition.describe,
    builder: definition.options,
    handler: (args) => definition.run(args as ArgumentsCamelCase<A>, context),
  });
}
