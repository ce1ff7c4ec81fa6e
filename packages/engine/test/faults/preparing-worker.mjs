// In a worker thread: ends while the pool has checked the tables but nothing was told of it yet.
import { parentPort, workerData } from "node:worker_threads";
import { openCheckpoint } from "@k3/checkpoint";
import { runAtOnce } from "@k3/stage";
import { loadNative } from "../../dist/loader.js";
import { buildTables } from "../../dist/tables.js";

const tables = runAtOnce(buildTables(await openCheckpoint(workerData.modelDir)));
// Half of them are refused: both ways to settle a promise.
if (workerData.spoiled) tables.roles = tables.roles.subarray(1);
new (loadNative().NativeEngine)(tables).prepare();
parentPort.postMessage("preparing");
for (;;);
