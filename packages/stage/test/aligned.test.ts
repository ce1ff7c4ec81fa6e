import { execFileSync } from "node:child_process";
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { alignedBuffers } from "../src/index.ts";

/** What direct reads of an 8192-byte file into these places of memory give: bytes, or the code of the error. */
function readDirect(places: readonly Uint8Array[]): (number | string)[] {
  const dir = mkdtempSync(join(tmpdir(), "k3-aligned-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  writeFileSync(join(dir, "file"), Buffer.alloc(8192, 7));
  const fd = openSync(join(dir, "file"), constants.O_RDONLY | constants.O_DIRECT);
  try {
    return places.map((place) => {
      try {
        return readSync(fd, place, 0, 4096, 4096);
      } catch (error) {
        return (error as NodeJS.ErrnoException).code!;
      }
    });
  } finally {
    closeSync(fd);
  }
}

/** Why a skewed place is no proof here; the kernel is the judge of what is aligned. */
function noJudge(): string | undefined {
  try {
    const [skewed] = readDirect([alignedBuffers(1, 8192)[0]!.subarray(1)]);
    return skewed === "EINVAL" ? undefined : `direct reads of ${tmpdir()} ask for no alignment`;
  } catch (error) {
    return `${tmpdir()} refuses O_DIRECT: ${(error as Error).message}`;
  }
}

describe("aligned buffers", () => {
  test("are as many and as long as asked, side by side, and can be written to", () => {
    const buffers = alignedBuffers(3, 70_000);
    expect(buffers.map(({ length }) => length)).toEqual([70_000, 70_000, 70_000]);
    for (const [n, buffer] of buffers.entries()) buffer.fill(n + 1);
    expect(buffers.map((buffer) => [buffer[0], buffer.at(-1)])).toEqual([
      [1, 1],
      [2, 2],
      [3, 3],
    ]);
  });

  test("each takes a direct read, which a place one byte further does not", ({ skip }) => {
    const why = noJudge();
    if (why) return skip(why);
    const buffers = alignedBuffers(3, 5000);
    expect(readDirect([...buffers, ...buffers.map((buffer) => buffer.subarray(1))])).toEqual([
      4096,
      4096,
      4096,
      "EINVAL",
      "EINVAL",
      "EINVAL",
    ]);
    expect(buffers.map((buffer) => buffer[4095])).toEqual([7, 7, 7]);
  });

  const module = new URL("../dist/aligned.js", import.meta.url).href;
  const script = `import { alignedBuffers } from ${JSON.stringify(module)};
    const [a, b] = alignedBuffers(2, 4096);
    b.fill(9);
    process.stdout.write([a.length, a.at(-1), b[0]].join());`;
  const evaluate = ["--input-type=module", "--eval", script];

  test("are there without WebAssembly, too", () => {
    expect(execFileSync(process.execPath, ["--jitless", ...evaluate], { encoding: "utf8" })).toContain(
      "4096,0,9",
    );
  });

  test("are there when address space is limited, too", () => {
    const limited = ["-c", 'ulimit -v 6000000; exec "$@"', "sh", process.execPath, ...evaluate];
    expect(execFileSync("sh", limited, { encoding: "utf8" })).toBe("4096,0,9");
  });
});
