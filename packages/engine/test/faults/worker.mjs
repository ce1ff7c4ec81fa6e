// In a worker thread: one run, or one that is left in mid-step when the thread ends.
import { parentPort, workerData } from "node:worker_threads";
import { Model } from "../../dist/index.js";

const { modelDir, ids, leave } = workerData;
const model = await Model.open({ modelDir, memory: 8e9, threads: 2, contextTokens: 128 });
const session = model.session();
const running = session.prefill(ids);
if (leave) process.exit(7);
await running;
const generated = [];
for await (const { id } of session.generate({ maxTokens: 4 })) generated.push(id);
await model.close();
parentPort.postMessage(generated);
