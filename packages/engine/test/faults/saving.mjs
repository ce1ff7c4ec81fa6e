// Saves a state of 4 MiB to argv[2] and stops in the middle of it: killed, or (argv[3] "stays") waiting for standard input to end.
import { readSync } from "node:fs";
import { saveState } from "../../dist/state-file.js";

const stays = process.argv[3] === "stays";
const owner = { configSha256: "", revision: null, layers: 1, trunk: { codec: "none" } };
const state = {
  bytes: 4 << 20,
  position: 1,
  serialize(offset) {
    if (offset < 2 << 20) return true;
    if (!stays) process.kill(process.pid, "SIGKILL");
    process.stdout.write("saving\n");
    try {
      while (readSync(0, Buffer.alloc(1)) > 0);
    } catch {}
    process.exit(0);
  },
};
await saveState(process.argv[2], owner, { state, ids: [1], logits: null });
