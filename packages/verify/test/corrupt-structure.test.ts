import { appendFile, readFile, truncate } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type Corruption, check } from "./corruption.ts";
import { CONFIG, editHeader, freeze, model, outcome, overwrite, put, shard } from "./model.ts";

const TWO = shard(2);
const LAYER = "language_model.model.layers.1.";
const NORM = `${LAYER}input_layernorm.weight`;
const A_LOG = `${LAYER}self_attn.A_log`;
const PACKED = `${LAYER}block_sparse_moe.experts.0.w1.weight_packed`;
const first = (h: Record<string, unknown>) => Object.keys(h)[0]!;

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
