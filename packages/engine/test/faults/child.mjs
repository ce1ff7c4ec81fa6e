// One run in a process of its own: node child.mjs '{...options of Model.open, ids, generate}'. Prints one line of JSON.
import { copyFileSync, renameSync } from "node:fs";
import { stat } from "node:fs/promises";
import { Model } from "../../dist/index.js";

const {
  ids,
  generate,
  exitAfterMs,
  peak,
  replace = [],
  fewThreads,
  ...options
} = JSON.parse(process.argv[2]);
if (exitAfterMs !== undefined) setTimeout(() => process.exit(42), exitAfterMs);
if (fewThreads !== undefined) {
  await stat("."); // Node starts threads of its own with the first call
  process.env.K3_FEW_THREADS = String(fewThreads);
}
try {
  const model = await Model.open({ memory: 8e9, threads: 2, contextTokens: 256, ...options });
  // From now on only: Node reads the headers, and what it reads must be whole.
  if (process.env.K3_BAD_DISK_ONCE_OPEN) process.env.K3_BAD_DISK = process.env.K3_BAD_DISK_ONCE_OPEN;
  for (const file of replace) {
    copyFileSync(file, `${file}.new`);
    renameSync(`${file}.new`, file);
  }
  const session = model.session();
  await session.prefill(ids);
  const generated = [];
  for await (const { id } of session.generate({ maxTokens: generate })) generated.push(id);
  const resident = peak ? { peak: process.resourceUsage().maxRSS * 1024 } : {};
  console.log(JSON.stringify({ generated, stats: model.stats(), ...resident }));
  await model.close();
} catch (error) {
  const { code, exit, message, hint, details } = error;
  console.log(JSON.stringify({ code, exit, message, hint, details }));
}
