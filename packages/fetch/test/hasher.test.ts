import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { toStageError } from "@k3/stage";
import { expect, it, vi } from "vitest";
import { Hasher } from "../src/hasher.ts";
import { atEnd, temporary } from "./support.ts";

it("a hashing thread that died answers nobody, but keeps nobody waiting either", async () => {
  const threads: Worker[] = [];
  const { unref } = Worker.prototype;
  const spy = vi.spyOn(Worker.prototype, "unref").mockImplementation(function (this: Worker) {
    threads.push(this);
    unref.call(this);
  });
  atEnd(async () => spy.mockRestore());
  const path = join(await temporary(), "file");
  await writeFile(path, "abc");
  const hasher = new Hasher();
  atEnd(() => hasher.close());
  const first = await hasher.start(path, "sha256", 3);
  await threads[0]!.terminate();
  await expect(first.drop()).rejects.toThrow("no hash of this key");
  const second = await hasher.start(path, "sha256", 3);
  expect(await second.read(3)).toBe("ok");
  // SHA-256 of "abc" (FIPS 180-2, B.1).
  expect((await second.finish()).hash).toBe(
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
  );
});

it("a disk that cannot be read is named with the file, not taken for a defect", async () => {
  const hasher = new Hasher();
  atEnd(() => hasher.close());
  // Linux has nothing mapped at address 0, and says so as a disk does that cannot be read.
  const hash = await hasher.start("/proc/self/mem", "sha256", 1);
  const error = await hash.read(1).catch(toStageError);
  expect(error).toMatchObject({
    code: "E_READ",
    exit: 4,
    message: expect.stringMatching(/^\/proc\/self\/mem: the disk failed \(EIO/),
  });
});
