import { createRequire } from "node:module";
import { dirname, join } from "node:path";

/** The command of this workspace, to be run with Node.js. */
export const K3 = join(dirname(createRequire(import.meta.url).resolve("@k3/cli/package.json")), "bin/k3.js");
