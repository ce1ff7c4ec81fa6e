import {
  appendFile,
  chmod,
  mkdir,
  readFile,
  rename,
  rm,
  symlink,
  truncate,
  unlink,
  writeFile,
} from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type Corruption, check } from "./corruption.ts";
import { model, outcome, overwrite, put, shard } from "./model.ts";

const TWO = shard(2);

/** Faults of files, against the manifest; at level hashes unless something else is said. */
const FILES: Corruption[] = [
  {
    what: "a file that is missing",
    damage: (dir) => unlink(join(dir, TWO)),
    faults: [[TWO, "missing", /no such file/]],
  },
  {
    what: "a small file that is missing",
    damage: (dir) => unlink(join(dir, "tiktoken.model")),
    faults: [["tiktoken.model", "missing", /14 bytes/]],
    options: { level: "sizes" },
  },
  {
    what: "a missing folder",
    damage: (dir) => rm(join(dir, "docs"), { recursive: true }),
    faults: [["docs/notes on ünits.md", "missing", /no such file/]],
  },
  {
    what: "a missing config.json",
    damage: (dir) => unlink(join(dir, "config.json")),
    faults: [["config.json", "missing", /no such file/]],
  },
  {
    what: "a shard cut by one byte",
    damage: async (dir) => truncate(join(dir, TWO), (await readFile(join(dir, TWO))).length - 1),
    faults: [[TWO, "size", /1 too few/]],
  },
  {
    what: "a shard with one byte more",
    damage: (dir) => appendFile(join(dir, TWO), "x"),
    faults: [[TWO, "size", /1 too many/]],
  },
  {
    what: "two shards wrong by the same number of bytes",
    damage: async (dir) => {
      await appendFile(join(dir, TWO), "xyz");
      await truncate(join(dir, shard(3)), (await readFile(join(dir, shard(3)))).length - 3);
    },
    faults: [
      [TWO, "size", /3 too many/],
      [shard(3), "size", /3 too few/],
    ],
  },
  {
    what: "a file of zero bytes",
    damage: (dir) => truncate(join(dir, TWO), 0),
    faults: [[TWO, "empty-file", /0 bytes/]],
  },
  {
    what: "an LFS pointer",
    damage: (dir) =>
      writeFile(
        join(dir, TWO),
        `version https://git-lfs.github.com/spec/v1\noid sha256:${"a".repeat(64)}\nsize 16990911504\n`,
      ),
    faults: [[TWO, "lfs-pointer", /Git LFS pointer/]],
  },
  {
    what: "an HTML page",
    damage: (dir) => writeFile(join(dir, TWO), "<!doctype html><title>429</title>"),
    faults: [[TWO, "html", /HTML/]],
  },
  {
    what: "an HTML page of the right size",
    damage: async (dir) => writeFile(join(dir, "tiktoken.model"), "<html></html>\n"),
    faults: [["tiktoken.model", "html", /HTML.*sha256/]],
  },
  {
    what: "a hole of the right size",
    damage: async (dir) => {
      const { length } = await readFile(join(dir, shard(5)));
      await truncate(join(dir, shard(5)), 0);
      await truncate(join(dir, shard(5)), length);
    },
    faults: [[shard(5), "hole", /hole/]],
  },
  {
    what: "a hole of the right size, at level sizes",
    damage: async (dir) => {
      const { length } = await readFile(join(dir, TWO));
      await truncate(join(dir, TWO), 0);
      await truncate(join(dir, TWO), length);
    },
    faults: [[TWO, "hole", /nothing was written/]],
    options: { level: "sizes" },
  },
  {
    what: "a symbolic link to nowhere",
    damage: async (dir) => {
      await unlink(join(dir, TWO));
      await symlink("../../blobs/abc", join(dir, TWO));
    },
    faults: [[TWO, "dangling-symlink", /link to nowhere/]],
  },
  {
    what: "a directory in the place of a file",
    damage: async (dir) => {
      await unlink(join(dir, TWO));
      await mkdir(join(dir, TWO));
    },
    faults: [[TWO, "not-a-file", /not a regular file/]],
  },
  {
    what: "a flipped bit in the weights",
    damage: (dir) => overwrite(join(dir, TWO), -5, "\x01"),
    faults: [[TWO, "hash", /sha256/]],
  },
  {
    what: "a flipped bit in a plain file",
    damage: (dir) => overwrite(join(dir, "docs/notes on ünits.md"), 0, "T"),
    faults: [["docs/notes on ünits.md", "hash", /git-sha1/]],
  },
  {
    what: "a flipped bit in config.json",
    damage: (dir) => overwrite(join(dir, "config.json"), 2, "M"),
    faults: [["config.json", "hash", /git-sha1/]],
  },
  {
    what: "a flipped bit in config.json, at level structure",
    damage: (dir) => overwrite(join(dir, "config.json"), 2, "M"),
    faults: [["config.json", "hash", /git-sha1/]],
    options: { level: "structure" },
  },
  {
    what: "two shards in each other's place",
    damage: async (dir) => {
      await rename(join(dir, shard(3)), join(dir, "x"));
      await rename(join(dir, shard(4)), join(dir, shard(3)));
      await rename(join(dir, "x"), join(dir, shard(4)));
    },
    faults: [
      [shard(3), "hash", /sha256/],
      [shard(4), "hash", /sha256/],
    ],
  },
  {
    what: "everything at once",
    damage: async (dir) => {
      await unlink(join(dir, "generation_config.json"));
      await truncate(join(dir, shard(1)), 9);
      await overwrite(join(dir, shard(5)), -1, "\x02");
    },
    faults: [
      ["generation_config.json", "missing", /no such/],
      [shard(1), "size", /9 bytes/],
      [shard(5), "hash", /sha256/],
    ],
  },
  {
    what: "a foreign file, when that is a fault",
    damage: (dir) => put(dir, "sub/model.bin", "x"),
    faults: [["sub/model.bin", "extra-file", /does not have/]],
    options: { failOnExtra: true },
  },
  {
    what: "a foreign file in .cache, when that is a fault",
    damage: (dir) => put(dir, ".cache/other/x", "x"),
    faults: [[".cache/other/x", "extra-file", /does not have/]],
    options: { failOnExtra: true },
  },
];

describe("damaged files", () => {
  for (const corruption of FILES) test(corruption.what, async () => check(await model(), corruption));
});

const isRoot = process.getuid?.() === 0;
test.skipIf(isRoot)(
  `a file that may not be read${isRoot ? " (skipped: root may read everything)" : ""}`,
  async () => {
    const dir = await model();
    await chmod(join(dir, TWO), 0);
    expect((await outcome({ dir })).faults).toContainEqual(
      expect.objectContaining({ path: TWO, kind: "unreadable" }),
    );
  },
);
