// Reads every file of a directory through the page cache, then verifies the directory with `recheck`. Prints the result
// and how many bytes this process had from the block device in each of the two, by the kernel's own account; and whether
// the kernel keeps that account of a direct read at all.
import { constants, openSync, readdirSync, readFileSync, readSync, statSync } from "node:fs";
import { join } from "node:path";
import { alignedBuffers } from "@k3/stage";
import { verify } from "../../dist/index.js";

const [dir] = process.argv.slice(2);
let last = 0;
function fromDevice() {
  const total = Number(/^read_bytes: (\d+)$/m.exec(readFileSync("/proc/self/io", "utf8"))[1]);
  const since = total - last;
  last = total;
  return since;
}

fromDevice();
const files = readdirSync(dir, { recursive: true }).map((name) => join(dir, name));
for (const file of files.filter((path) => statSync(path).isFile())) readFileSync(file);
const buffered = fromDevice();
const result = await verify({ dir, recheck: true });
const verified = fromDevice();
let accounted = 0;
try {
  readSync(
    openSync(join(dir, "config.json"), constants.O_RDONLY | constants.O_DIRECT),
    alignedBuffers(1, 4096)[0],
  );
  accounted = fromDevice();
} catch {}
process.stdout.write(JSON.stringify({ result, buffered, verified, accounted }));
