import { connect, type Socket } from "node:net";
import { Worker } from "node:worker_threads";

/** An address whose SYNs are never answered: connecting to it hangs until the client's own timeout. */
export interface BlackHole {
  host: string;
  port: number;
  origin: string;
  close(): Promise<void>;
}

// The thread listens with the shortest queue and then sleeps for ever, so nothing is ever accepted.
const LISTENER = `
const { createServer } = require("node:net");
const { parentPort, workerData } = require("node:worker_threads");
const server = createServer();
server.listen({ host: workerData.host, port: workerData.port, backlog: 1 }, () => {
  parentPort.postMessage(server.address().port);
  setTimeout(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0), 20);
});`;

/** Opens a black hole on a loopback address: a listener whose accept queue is full (Linux drops further SYNs). */
export async function startBlackHole(host = "127.0.0.4", atPort = 0): Promise<BlackHole> {
  const worker = new Worker(LISTENER, { eval: true, workerData: { host, port: atPort } });
  const port = await new Promise<number>((resolve, reject) => {
    worker.once("message", resolve);
    worker.once("error", reject);
  });
  await new Promise((resolve) => setTimeout(resolve, 100));
  const sockets: Socket[] = [];
  // A backlog of 1 holds two connections; the rest make sure of it and stay half open.
  for (let i = 0; i < 4; i++) {
    const socket = connect({ host, port });
    socket.on("error", () => {});
    sockets.push(socket);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, 50);
      socket.once("connect", () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
  return {
    host,
    port,
    origin: `http://${host}:${port}`,
    async close() {
      for (const socket of sockets) socket.destroy();
      await worker.terminate();
    },
  };
}
