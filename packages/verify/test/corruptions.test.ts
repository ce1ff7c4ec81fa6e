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
import type { VerifyOptions } from "../src/types.ts";
import { CONFIG, editHeader, freeze, model, outcome, overwrite, put, shard } from "./model.ts";

const TWO = shard(2);
const LAYER = "language_model.model.layers.1.";
const NORM = `${LAYER}input_layernorm.weight`;
const A_LOG = `${LAYER}self_attn.A_log`;
const PACKED = `${LAYER}block_sparse_moe.experts.0.w1.weight_packed`;
const first = (h: Record<string, unknown>) => Object.keys(h)[0]!;

interface Corruption {
  what: string;
  damage: (dir: string) => Promise<unknown>;
  /** What is expected: [path, kind, part of "expected ... found ..."]. */
  faults: [string, string, RegExp][];
  exit?: number;
  options?: Partial<VerifyOptions>;
}

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

/** Faults inside a shard that was published like this: the manifest agrees with the bytes, so only the structure tells. */
const STRUCTURE: Corruption[] = [
  {
    what: "a header length of 2^64 - 1",
    damage: (dir) => overwrite(join(dir, TWO), 0, Buffer.alloc(8, 0xff)),
    faults: [[TWO, "header-length", /18446744073709551615/]],
  },
  {
    what: "a header length beyond the file",
    damage: (dir) => overwrite(join(dir, TWO), 4, Buffer.from([1])),
    faults: [[TWO, "header-length", /which follow in the file/]],
  },
  {
    what: "a file of seven bytes",
    damage: (dir) => put(dir, TWO, "1234567"),
    faults: [[TWO, "header-length", /7 bytes/]],
  },
  {
    what: "a header that is no JSON",
    damage: (dir) => editHeader(dir, TWO, () => "{not json}"),
    faults: [[TWO, "header-syntax", /byte/]],
  },
  {
    what: "an unknown dtype",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.dtype = "BF17";
      }),
    faults: [[TWO, "unknown-dtype", /"BF17"/]],
  },
  {
    what: "a known dtype that is not allowed here",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.dtype = "F16";
      }),
    faults: [[TWO, "wrong-dtype", /BF16 or F32.*F16/]],
  },
  {
    what: "a negative dimension",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.shape = [-8];
      }),
    faults: [[TWO, "shape", /\[-8\]/]],
  },
  {
    what: "dimensions whose product wraps",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.shape = [2 ** 32, 2 ** 32, 8];
      }),
    faults: [[TWO, "shape", /product below 2\^53/]],
  },
  {
    what: "a negative offset",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.data_offsets[0] = -1;
      }),
    faults: [[TWO, "offsets", /\[-1,/]],
  },
  {
    what: "offsets near 2^63",
    damage: (dir) =>
      editHeader(dir, TWO, (h) =>
        JSON.stringify(h).replace(/("data_offsets":\[)\d+,\d+/, "$19223372036854775800,9223372036854775807"),
      ),
    faults: [[TWO, "offsets", /9223372036854775807/]],
  },
  {
    what: "offsets that go backwards",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.data_offsets.reverse();
      }),
    faults: [[TWO, "offsets", /second not before/]],
  },
  {
    what: "a span that is not dtype x shape",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.shape = [7];
      }),
    faults: [[TWO, "span", /14 bytes for BF16 \[7\].*16 bytes/]],
  },
  {
    what: "a packed expert counted in weights",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[PACKED]!.shape = [32, 32];
      }),
    faults: [[TWO, "span", /1024 bytes for U8/]],
  },
  {
    what: "overlapping tensors",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        const t = h[first(h)]!;
        h[NORM]!.data_offsets = [t.data_offsets[0]!, t.data_offsets[0]! + 16];
      }),
    faults: [
      [TWO, "overlap", /bytes 0 to/],
      [TWO, "overlap", /to start at 16 or later, behind .*input_layernorm/],
      [TWO, "gap", /belong to no tensor/],
    ],
  },
  {
    what: "a gap between tensors",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        delete h["language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias"];
      }),
    faults: [
      [TWO, "gap", /12 bytes belong/],
      [TWO, "missing", /no such tensor/],
    ],
  },
  {
    what: "trailing bytes",
    damage: (dir) => appendFile(join(dir, TWO), "tail"),
    faults: [[TWO, "trailing-bytes", /4 bytes after the last tensor/]],
  },
  {
    what: "data cut by one byte",
    damage: async (dir) => truncate(join(dir, TWO), (await readFile(join(dir, TWO))).length - 1),
    faults: [[TWO, "truncated", /1 tensor end/]],
  },
  {
    what: "a name twice in a file",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => JSON.stringify(h).replace(/^\{/, `{"${NORM}":${JSON.stringify(h[NORM])},`)),
    faults: [[TWO, "duplicate", /twice in this file/]],
  },
  {
    what: "a name in two files",
    damage: (dir) =>
      editHeader(dir, shard(5), (h) => {
        const [name, entry] = Object.entries(h).find(([n]) => n.endsWith("model.norm.weight"))!;
        delete h[name];
        h[NORM] = entry;
      }),
    faults: [
      [shard(5), "duplicate", new RegExp(`${TWO} and in ${shard(5)}`)],
      [shard(5), "missing", /no such tensor/],
    ],
  },
  {
    what: "an unknown field of a tensor",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        (h[NORM] as Record<string, unknown>)["stride"] = [1];
      }),
    faults: [[TWO, "header-field", /another "stride"/]],
  },
  {
    what: "metadata that are no strings",
    damage: (dir) => editHeader(dir, TWO, (h) => ({ __metadata__: { n: 1 }, ...h })),
    faults: [[TWO, "header-field", /object of strings/]],
  },
  {
    what: "a misshapen tensor",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[NORM]!.shape = [2, 4];
      }),
    faults: [[TWO, "wrong-shape", /\[8\].*\[2, 4\]/]],
  },
  {
    what: "a tensor under another name",
    damage: (dir) =>
      editHeader(dir, TWO, (h) => {
        h[`${LAYER}input_norm.weight`] = h[NORM]!;
        delete h[NORM];
      }),
    faults: [
      [TWO, "extra", /config.json implies.*BF16 \[8\]/],
      [TWO, "missing", /no such tensor/],
    ],
  },
  {
    what: "an A_log whose tail is not zero",
    damage: async (dir) => {
      const bytes = await readFile(join(dir, TWO));
      const dataStart = 8 + Number(bytes.readBigUInt64LE());
      const header = JSON.parse(bytes.subarray(8, dataStart).toString());
      await overwrite(join(dir, TWO), dataStart + header[A_LOG].data_offsets[1] - 1, "\x3f");
    },
    faults: [[TWO, "a-log-tail", /zeros after the rates of the 2 heads.*entry 3/]],
  },
  {
    what: "a config that fits another model",
    damage: (dir) =>
      put(
        dir,
        "config.json",
        JSON.stringify({ ...CONFIG, text_config: { ...CONFIG.text_config, vocab_size: 301 } }),
      ),
    faults: [
      [shard(5), "wrong-shape", /\[301, 8\].*\[300, 8\]/],
      [shard(5), "wrong-shape", /\[301, 8\]/],
    ],
  },
  {
    what: "a second checkpoint in the directory",
    damage: async (dir) => put(dir, "consolidated.safetensors", await readFile(join(dir, shard(5)))),
    faults: [1, 2, 3, 4, 5].map((): [string, string, RegExp] => [
      shard(1).replace(/.*/, "model-00005-of-000007.safetensors"),
      "duplicate",
      /in consolidated/,
    ]),
  },
];

async function check(
  dir: string,
  { damage, faults, exit = 3, options = {} }: Corruption,
  level?: "structure",
): Promise<void> {
  await damage(dir);
  if (level) await rm(join(dir, ".cache"), { recursive: true });
  const found = await outcome({ dir, ...(level ? { level } : {}), ...options });
  expect(found.faults.map(({ path, kind }) => [path, kind])).toEqual(
    faults.map(([path, kind]) => [path, kind]),
  );
  for (const [i, [, , message]] of faults.entries()) {
    expect(`expected ${found.faults[i]!.expected}, found ${found.faults[i]!.found}`).toMatch(message);
  }
  expect(found.exit).toBe(exit);
  expect(found.result).toMatchObject({ ok: false });
}

describe("damaged files", () => {
  for (const corruption of FILES) test(corruption.what, async () => check(await model(), corruption));
});

describe("damaged structure, in a directory without a manifest", () => {
  for (const corruption of STRUCTURE)
    test(corruption.what, async () => check(await model(), corruption, "structure"));
});

test("damage of the structure shows with a manifest as well, and its files hash as published", async () => {
  const dir = await model();
  await editHeader(dir, TWO, (h) => {
    h[NORM]!.shape = [2, 4];
  });
  await freeze(dir);
  const { faults, exit } = await outcome({ dir });
  expect([exit, faults.map(({ path, kind }) => [path, kind])]).toEqual([3, [[TWO, "wrong-shape"]]]);
});

describe("what is refused with an error", () => {
  const refused: [string, (dir: string) => Promise<unknown>, Partial<VerifyOptions>, number, RegExp][] = [
    [
      "a published config.json that is not of K3",
      async (dir) => {
        await put(dir, "config.json", '{"model_type":"llama"}');
        await freeze(dir);
      },
      {},
      2,
      /hidden_size is missing/,
    ],
    [
      "the same without a manifest",
      async (dir) => {
        await put(dir, "config.json", "{}");
        await rm(join(dir, ".cache"), { recursive: true });
      },
      { level: "structure" },
      2,
      /num_hidden_layers is missing/,
    ],
    [
      "no config.json and no manifest",
      async (dir) => {
        await unlink(join(dir, "config.json"));
        await rm(join(dir, ".cache"), { recursive: true });
      },
      { level: "structure" },
      3,
      /no config.json/,
    ],
    [
      "a directory that is not there",
      async (dir) => rm(dir, { recursive: true }),
      {},
      3,
      /no such directory/,
    ],
    [
      "a manifest that is torn",
      async (dir) => truncate(join(dir, ".cache/k3/snapshot.json"), 200),
      {},
      3,
      /not a snapshot manifest/,
    ],
    [
      "a manifest without a SHA-256 for a large file",
      async (dir) => {
        const { files } = await freeze(dir);
        await freeze(dir, [], {
          files: files.map(({ path, size }) =>
            path === TWO
              ? { path, size: 17_000_000_000, gitSha1: "1".repeat(40) }
              : { path, size, gitSha1: "2".repeat(40) },
          ),
        });
      },
      {},
      3,
      /no SHA-256 for model-00002.*17.0 GB/,
    ],
    [
      "a manifest without any hash for a file",
      async (dir) => {
        const { files } = await freeze(dir);
        await freeze(dir, [], { files: files.map(({ path, size }) => ({ path, size })) });
      },
      {},
      3,
      /no hash for/,
    ],
    [
      "a manifest that leads out of the directory",
      async (dir) => {
        await freeze(dir, [], { files: [{ path: "../../etc/passwd", size: 1, gitSha1: "1".repeat(40) }] });
      },
      {},
      3,
      /unsafe path/,
    ],
    [
      "a manifest with an absolute path",
      async (dir) => {
        await freeze(dir, [], { files: [{ path: "/etc/passwd", size: 1, gitSha1: "1".repeat(40) }] });
      },
      {},
      3,
      /unsafe path/,
    ],
    [
      "a manifest that lists our own state",
      async (dir) => {
        await freeze(dir, [], {
          files: [{ path: ".cache/k3/verify.json", size: 1, gitSha1: "1".repeat(40) }],
        });
      },
      {},
      3,
      /unsafe path/,
    ],
    [
      "a manifest that lists a file twice",
      async (dir) => {
        const { files } = await freeze(dir);
        await freeze(dir, [], { files: [...files, files[0]!] });
      },
      {},
      3,
      /listed twice/,
    ],
    [
      "a tree file that is none",
      async (dir) => put(dir, "tree.json", '{"files":[]}'),
      { manifest: "tree.json" },
      3,
      /neither a k3 snapshot manifest nor/,
    ],
    [
      "a manifest file that is not there",
      async () => undefined,
      { manifest: "nowhere.json" },
      3,
      /no such file/,
    ],
    [
      "a manifest and a repository",
      async () => undefined,
      { manifest: "x", repo: "a/b" },
      2,
      /two sources of truth/,
    ],
    [
      "a repository at a moving name",
      async () => undefined,
      { repo: "a/b", revision: "main" },
      2,
      /a moving name proves nothing/,
    ],
    ["a repository without a commit", async () => undefined, { repo: "a/b" }, 2, /not a commit/],
    [
      "a commit without a repository",
      async () => undefined,
      { revision: "1".repeat(40) },
      2,
      /names no files/,
    ],
    ["no jobs", async () => undefined, { jobs: 0 }, 2, /jobs must be/],
    [
      "damage since a receipt that does not exist",
      async () => undefined,
      { sinceReceipt: true },
      2,
      /has no receipt/,
    ],
    [
      "damage since a receipt, at level structure",
      async () => undefined,
      { sinceReceipt: true, level: "structure" },
      2,
      /hashes only/,
    ],
    [
      "surplus files without a manifest",
      async (dir) => rm(join(dir, ".cache"), { recursive: true }),
      { failOnExtra: true, level: "structure" },
      2,
      /surplus files cannot be verified/,
    ],
  ];
  test.each(refused)("%s", async (_, damage, options, exit, message) => {
    const dir = await model();
    await damage(dir);
    const manifest = options.manifest === undefined ? {} : { manifest: join(dir, options.manifest) };
    const { error, exit: found } = await outcome({ dir, ...options, ...manifest });
    expect([found, error!.message]).toEqual([exit, expect.stringMatching(message)]);
  });
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
