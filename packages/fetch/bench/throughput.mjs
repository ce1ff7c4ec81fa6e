// Measures @k3/fetch on this machine: throughput against `curl` with as many parallel ranges to the same disk plus a sync
// (shaped to 1 and 2.5 Gbit/s, and unshaped), memory with 16 GB shards under a 512 MiB cgroup, resumption after SIGKILL.
//
//   node bench/throughput.mjs [speed] [memory] [resume] [--bytes 2000000000] [--runs 2] [--dir /tmp]
//
// The server runs in a process of its own on the same cores, so what is compared is two clients under equal conditions.
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    bytes: { type: "string", default: "2000000000" },
    "shard-bytes": { type: "string", default: "16250000000" },
    runs: { type: "string", default: "2" },
    dir: { type: "string", default: tmpdir() },
    help: { type: "boolean" },
  },
});
if (values.help) {
  console.log(`node packages/fetch/bench/throughput.mjs [speed] [memory] [resume] [--bytes 2000000000] [--shard-bytes 16250000000]
  [--runs 2] [--dir /tmp]`);
  process.exit(0);
}
const wanted = positionals.length > 0 ? positionals : ["speed", "memory", "resume"];
const CONNECTIONS = 8;
const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const fresh = () => mkdtempSync(join(values.dir, "k3-fetch-bench-"));
const MB = (bytes) => (bytes / 1e6).toFixed(0);

async function startServer(shards, bytes) {
  const child = spawn(process.execPath, [here("server.mjs"), JSON.stringify({ shards, bytes })], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  const { endpoint } = await next();
  return {
    endpoint,
    ask: async (order) => {
      child.stdin.write(`${JSON.stringify(order)}\n`);
      return next();
    },
    stop: () => child.kill(),
  };
}

/** Runs the client, in a cgroup if one is given; `onLine` may kill it. */
async function runClient(options, { cgroup, onLine = () => undefined } = {}) {
  const args = [here("client.mjs"), JSON.stringify({ repo: "bench/model", token: "", ...options })];
  const command = cgroup
    ? ["sh", "-c", `echo $$ > ${cgroup}/cgroup.procs; exec "$@"`, "sh", process.execPath, ...args]
    : [process.execPath, ...args];
  const child = spawn(command[0], command.slice(1), {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, UV_THREADPOOL_SIZE: "16" },
  });
  let last;
  for await (const line of createInterface({ input: child.stdout })) {
    last = JSON.parse(line);
    onLine(last, child);
  }
  return last;
}

async function runCurl(endpoint, bytes, dir) {
  const sha = JSON.parse(
    execFileSync("curl", ["-s", `${endpoint}/api/models/bench/model/revision/main`], { encoding: "utf8" }),
  ).sha;
  const head = execFileSync(
    "curl",
    ["-sI", `${endpoint}/bench/model/resolve/${sha}/model-00001.safetensors`],
    { encoding: "utf8" },
  );
  const url = /^location: (\S+)/im.exec(head)[1];
  const step = Math.ceil(bytes / CONNECTIONS);
  const started = performance.now();
  await Promise.all(
    Array.from({ length: CONNECTIONS }, (_, i) => {
      const range = `${i * step}-${Math.min(bytes, (i + 1) * step) - 1}`;
      const child = spawn("curl", ["-sS", "-r", range, "-o", join(dir, `part${i}`), url], {
        stdio: "inherit",
      });
      return new Promise((resolve, reject) =>
        child.once("close", (code) => (code === 0 ? resolve() : reject(new Error(`curl: ${code}`)))),
      );
    }),
  );
  execFileSync("sync", ["-f", dir]);
  return (performance.now() - started) / 1000;
}

async function speed() {
  const bytes = Number(values.bytes);
  const server = await startServer(1, bytes);
  console.log(
    `throughput, ${MB(bytes)} MB in one shard, ${CONNECTIONS} connections, hashing and syncing on; best of ${values.runs}`,
  );
  for (const [name, bps] of [
    ["1 Gbit/s", 125e6],
    ["2.5 Gbit/s", 312.5e6],
    ["unshaped", undefined],
  ]) {
    await server.ask({ faults: { bps: bps ?? false } });
    let curl = Infinity;
    let ours = Infinity;
    let cpu = 0;
    for (let run = 0; run < Number(values.runs); run++) {
      for (const client of run % 2 === 0 ? ["curl", "k3"] : ["k3", "curl"]) {
        const dir = fresh();
        execFileSync("sync");
        if (client === "curl") curl = Math.min(curl, await runCurl(server.endpoint, bytes, dir));
        else {
          const { result, cpuSeconds } = await runClient({ dir, endpoint: server.endpoint });
          if (result.seconds < ours) [ours, cpu] = [result.seconds, cpuSeconds];
        }
        rmSync(dir, { recursive: true });
      }
    }
    console.log(
      `  ${name.padEnd(10)}  curl ${MB(bytes / curl)} MB/s   k3 ${MB(bytes / ours)} MB/s   ratio ${(curl / ours).toFixed(2)}   (${((cpu / bytes) * 1e9).toFixed(1)} cpu-s/GB)`,
    );
  }
  server.stop();
}

/** A cgroup (v1 or v2) with a memory limit, or undefined where we may not make one. */
function makeCgroup(limit) {
  const v1 = existsSync("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  const path = join(v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", `k3-fetch-bench-${process.pid}`);
  try {
    if (!v1 && !existsSync("/sys/fs/cgroup/cgroup.controllers")) return undefined;
    mkdirSync(path);
    writeFileSync(join(path, v1 ? "memory.limit_in_bytes" : "memory.max"), String(limit));
  } catch {
    return undefined;
  }
  const kills = () =>
    /oom_kill (\d+)/.exec(readFileSync(join(path, v1 ? "memory.oom_control" : "memory.events"), "utf8"))?.[1];
  return { path, kills, remove: () => rmdirSync(path) };
}

async function memory() {
  const bytes = Number(values["shard-bytes"]);
  const cgroup = makeCgroup(512 * 1024 * 1024);
  const server = await startServer(1, bytes);
  const dir = fresh();
  const { result, peakMb } = await runClient({ dir, endpoint: server.endpoint }, { cgroup: cgroup?.path });
  rmSync(dir, { recursive: true });
  server.stop();
  const where = cgroup
    ? `under a cgroup limit of 512 MiB (out-of-memory kills: ${cgroup.kills()})`
    : "(no right to make a cgroup here)";
  console.log(
    `memory: one shard of ${MB(bytes)} MB ${where}: peak resident ${peakMb.toFixed(0)} MB, ${MB(result.bytes / result.seconds)} MB/s`,
  );
  cgroup?.remove();
}

async function resume() {
  const bytes = Number(values.bytes) * 2;
  const server = await startServer(1, bytes);
  const dir = fresh();
  const killed = await runClient(
    { dir, endpoint: server.endpoint },
    { onLine: (line, child) => line.done >= 0.4 * bytes && child.kill("SIGKILL") },
  );
  const { sent: first } = await server.ask({ clear: true });
  const { result } = await runClient({ dir, endpoint: server.endpoint });
  rmSync(dir, { recursive: true });
  server.stop();
  const lost = killed.done + result.downloaded_bytes - bytes;
  const bound = CONNECTIONS * 64 * 1024 * 1024;
  console.log(
    `resume: killed at ${MB(killed.done)} of ${MB(bytes)} MB (the server had sent ${MB(first)}); the second run kept ${MB(result.resumed_bytes)} and fetched ${MB(result.downloaded_bytes)}: ${MB(lost)} MB twice, bound ${MB(bound)}`,
  );
  if (lost > bound + 32 * 1024 * 1024) process.exitCode = 1;
}

const all = { speed, memory, resume };
for (const name of wanted) await all[name]();
