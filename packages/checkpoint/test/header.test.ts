import { describe, expect, test } from "vitest";
import { DTYPES } from "../src/dtypes.ts";
import { type HeaderFault, parseHeader } from "../src/header.ts";
import { HeaderTable } from "../src/header-table.ts";

const table = new HeaderTable();

function faultsOf(header: object | string, dataBytes: number): HeaderFault[] {
  return parseHeader(
    Buffer.from(typeof header === "string" ? header : JSON.stringify(header)),
    dataBytes,
    table,
  );
}

const entry = (dtype: unknown, shape: unknown, data_offsets: unknown) => ({ dtype, shape, data_offsets });
const F32x2 = entry("F32", [2], [0, 8]);

describe("a header that is accepted", () => {
  test("has its entries in the table", () => {
    expect(faultsOf({ b: entry("BF16", [2, 3], [8, 20]), a: F32x2 }, 20)).toEqual([]);
    expect(table.count).toBe(2);
    expect([table.name(0), table.shape(0), table.begin[0], table.end[0]]).toEqual(["b", [2, 3], 8, 20]);
    expect([table.name(1), table.shape(1), table.begin[1], table.end[1]]).toEqual(["a", [2], 0, 8]);
    expect(DTYPES[table.dtype[0]!]![0]).toBe("BF16");
  });

  test.each([
    ["without tensors", "{}", 0],
    ["with metadata", { __metadata__: { format: "pt", "": "" }, a: F32x2 }, 8],
    ["with empty metadata", { __metadata__: {}, a: F32x2 }, 8],
    ["padded with spaces", `${JSON.stringify({ a: F32x2 })}     `, 8],
    [
      "with white space between all tokens",
      JSON.stringify({ a: F32x2 }, null, "\t").replaceAll("\n", "\r\n"),
      8,
    ],
    ["with a scalar", { a: entry("F32", [], [0, 4]) }, 4],
    [
      "with tensors of no elements",
      { a: entry("F32", [0, 9], [0, 0]), b: F32x2, c: entry("U8", [0], [8, 8]) },
      8,
    ],
    ["with four-bit elements", { a: entry("F4", [4], [0, 2]) }, 2],
    [
      "with the members of an entry in another order",
      `{"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}`,
      8,
    ],
  ])("%s", (_, header, bytes) => {
    expect(faultsOf(header, bytes)).toEqual([]);
  });

  test.each(DTYPES.filter(([, bits]) => bits % 8 === 0))("with dtype %s of %i bits", (dtype, bits) => {
    expect(faultsOf({ a: entry(dtype, [3], [0, (3 * bits) / 8]) }, (3 * bits) / 8)).toEqual([]);
  });

  test("with escapes in names, which are decoded", () => {
    expect(
      faultsOf(
        String.raw`{"a\u00e9\n\ud83d\ude80\"\\\/":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`,
        1,
      ),
    ).toEqual([]);
    expect(table.name(0)).toBe('aé\n🚀"\\/');
  });

  test("with more names than fit the first table", () => {
    const header = Object.fromEntries(
      Array.from({ length: 5000 }, (_, i) => [`t${i}`, entry("U8", [1], [i, i + 1])]),
    );
    expect(faultsOf(header, 5000)).toEqual([]);
    expect([table.count, table.name(4999), table.shape(4999)]).toEqual([5000, "t4999", [1]]);
  });
});

describe("a header that is refused", () => {
  const big = "9223372036854775807";
  test.each<[string, object | string, number, Partial<HeaderFault>[]]>([
    [
      "an unknown dtype",
      { a: entry("F33", [2], [0, 8]) },
      8,
      [{ kind: "unknown-dtype", tensor: "a", found: '"F33"' }],
    ],
    ["a dtype that is no string", { a: entry(7, [2], [0, 8]) }, 8, [{ kind: "unknown-dtype", found: "7" }]],
    [
      "no dtype",
      { a: { shape: [2], data_offsets: [0, 8] } },
      8,
      [{ kind: "header-field", expected: "a dtype" }],
    ],
    [
      "no shape",
      { a: { dtype: "F32", data_offsets: [0, 8] } },
      8,
      [{ kind: "header-field", expected: "a shape" }],
    ],
    [
      "no offsets",
      { a: { dtype: "F32", shape: [2] } },
      8,
      [{ kind: "header-field", expected: "data_offsets" }],
    ],
    [
      "a field that is none of the three",
      { a: { ...F32x2, strides: [1] } },
      8,
      [{ kind: "header-field", found: 'another "strides"' }],
    ],
    [
      "a field twice",
      `{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
      8,
      [{ kind: "header-field", found: 'another "dtype"' }],
    ],
    ["an entry that is no object", { a: [1, 2] }, 0, [{ kind: "header-field", tensor: "a", found: "[1,2]" }]],
    ["a negative dimension", { a: entry("F32", [-2], [0, 8]) }, 8, [{ kind: "shape", found: "[-2]" }]],
    ["a fraction as dimension", { a: entry("F32", [2.5], [0, 8]) }, 8, [{ kind: "shape" }]],
    [
      "an exponent as dimension",
      `{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}`,
      8,
      [{ kind: "shape" }],
    ],
    ["a string as dimension", { a: entry("F32", ["2"], [0, 8]) }, 8, [{ kind: "shape" }]],
    ["a shape that is no list", { a: entry("F32", 2, [0, 8]) }, 8, [{ kind: "shape", found: "2" }]],
    [
      "dimensions whose product passes 2^53",
      { a: entry("F32", [2 ** 30, 2 ** 30], [0, 8]) },
      8,
      [{ kind: "shape" }],
    ],
    [
      "dimensions whose product wraps to the right span",
      { a: entry("U8", [2 ** 32, 2 ** 32, 8], [0, 8]) },
      8,
      [{ kind: "shape" }],
    ],
    ["more than 32 dimensions", { a: entry("U8", new Array(33).fill(1), [0, 1]) }, 1, [{ kind: "shape" }]],
    [
      "a dimension beyond 2^53",
      `{"a":{"dtype":"U8","shape":[${big}],"data_offsets":[0,8]}}`,
      8,
      [{ kind: "shape" }],
    ],
    ["a negative offset", { a: entry("F32", [2], [-8, 0]) }, 8, [{ kind: "offsets", found: "[-8,0]" }]],
    ["offsets that go backwards", { a: entry("F32", [2], [8, 0]) }, 8, [{ kind: "offsets" }]],
    [
      "offsets near 2^63",
      `{"a":{"dtype":"F32","shape":[2],"data_offsets":[9223372036854775800,${big}]}}`,
      8,
      [{ kind: "offsets" }],
    ],
    [
      "offsets near 2^64",
      `{"a":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551616]}}`,
      8,
      [{ kind: "offsets" }],
    ],
    ["one offset", { a: entry("F32", [2], [0]) }, 8, [{ kind: "offsets" }]],
    ["three offsets", { a: entry("F32", [2], [0, 8, 8]) }, 8, [{ kind: "offsets" }]],
    ["offsets that are no list", { a: entry("F32", [2], "0,8") }, 8, [{ kind: "offsets" }]],
    [
      "a span larger than dtype x shape",
      { a: entry("F32", [1], [0, 8]) },
      8,
      [{ kind: "span", expected: "4 bytes for F32 [1]", found: "8 bytes at 0" }],
    ],
    ["a span smaller than dtype x shape", { a: entry("F32", [2], [0, 4]) }, 4, [{ kind: "span" }]],
    [
      "a packed tensor counted in weights",
      { a: entry("U8", [4, 64], [0, 128]) },
      128,
      [{ kind: "span", expected: "256 bytes for U8 [4, 64]" }],
    ],
    ["half a byte of four-bit elements", { a: entry("F4", [3], [0, 2]) }, 2, [{ kind: "span" }]],
    [
      "overlapping tensors",
      { a: F32x2, b: entry("F32", [2], [4, 12]) },
      12,
      [{ kind: "overlap", tensor: "b" }],
    ],
    ["two tensors in the same place", { a: F32x2, b: F32x2 }, 8, [{ kind: "overlap", tensor: "b" }]],
    [
      "a tensor inside another",
      { a: entry("U8", [8], [0, 8]), b: entry("U8", [2], [3, 5]) },
      8,
      [{ kind: "overlap", tensor: "b" }],
    ],
    ["a gap before the first tensor", { a: entry("F32", [2], [4, 12]) }, 12, [{ kind: "gap", tensor: "a" }]],
    [
      "a gap between tensors",
      { a: F32x2, b: entry("U8", [1], [9, 10]) },
      10,
      [{ kind: "gap", tensor: "b", found: "a start at 9: 1 bytes belong to no tensor" }],
    ],
    [
      "trailing bytes",
      { a: F32x2 },
      11,
      [{ kind: "trailing-bytes", expected: "8 bytes of data", found: "11: 3 bytes after the last tensor" }],
    ],
    ["data without tensors", {}, 1, [{ kind: "trailing-bytes" }]],
    [
      "a tensor that ends one byte past the file",
      { a: F32x2 },
      7,
      [{ kind: "truncated", tensor: "a", expected: "8 bytes of data" }],
    ],
    [
      "a file cut in an early tensor: one fault",
      { a: F32x2, b: entry("U8", [1], [8, 9]), c: entry("U8", [1], [9, 10]) },
      4,
      [{ kind: "truncated", tensor: "a", found: "4: 3 tensors end outside the file, a first" }],
    ],
    [
      "a name twice",
      `{"a":${JSON.stringify(F32x2)},"a":${JSON.stringify(F32x2)}}`,
      8,
      [{ kind: "duplicate", tensor: "a" }],
    ],
    [
      "a name twice, once escaped",
      `{"a":${JSON.stringify(F32x2)},"\\u0061":${JSON.stringify(F32x2)}}`,
      8,
      [{ kind: "duplicate", tensor: "a" }],
    ],
    [
      "metadata twice",
      `{"__metadata__":{},"__metadata__":{}}`,
      0,
      [{ kind: "duplicate", tensor: "__metadata__" }],
    ],
    [
      "metadata that are no strings",
      { __metadata__: { a: 1 } },
      0,
      [{ kind: "header-field", tensor: "__metadata__" }],
    ],
    ["metadata that are a list", { __metadata__: [] }, 0, [{ kind: "header-field", tensor: "__metadata__" }]],
    ["half a surrogate pair", String.raw`{"\ud800":1}`, 0, [{ kind: "header-syntax" }]],
    ["an unknown escape", String.raw`{"\x41":1}`, 0, [{ kind: "header-syntax" }]],
    ["a control character in a name", `{"a\u0001":1}`, 0, [{ kind: "header-syntax" }]],
    ["a comma after the last entry", `{"a":${JSON.stringify(F32x2)},}`, 8, [{ kind: "header-syntax" }]],
    [
      "a number with a leading zero",
      `{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}`,
      8,
      [{ kind: "header-syntax" }],
    ],
    ["text after the object", "{}x", 0, [{ kind: "header-syntax", found: '"x"' }]],
    ["NUL padding", "{}\u0000\u0000", 0, [{ kind: "header-syntax" }]],
    ["a space before the object", " {}", 0, [{ kind: "header-syntax" }]],
    [
      "a header cut short",
      `{"a":{"dtype":"F32"`,
      0,
      [{ kind: "header-syntax", found: "the end of the header" }],
    ],
    ["a list", "[]", 0, [{ kind: "header-syntax" }]],
    ["nothing", "", 0, [{ kind: "header-syntax" }]],
    ["nesting without end", `{"a":${"[".repeat(100_000)}`, 0, [{ kind: "header-syntax" }]],
  ])("%s", (_, header, bytes, expected) => {
    expect(faultsOf(header, bytes)).toEqual(expected.map((fault) => expect.objectContaining(fault)));
  });

  test("bytes that are not UTF-8", () => {
    const bytes = Buffer.from(`{"a?":${JSON.stringify(F32x2)}}`);
    bytes[bytes.indexOf("?")] = 0xff;
    expect(parseHeader(bytes, 8, table)).toEqual([expect.objectContaining({ kind: "header-syntax" })]);
  });

  test("for several reasons: all are named", () => {
    const faults = faultsOf(
      { a: entry("F33", [2], [0, 8]), b: entry("F32", [-1], [8, 12]), c: entry("U8", [1], [20, 21]) },
      30,
    );
    expect(faults.map(({ kind, tensor }) => [kind, tensor])).toEqual([
      ["unknown-dtype", "a"],
      ["shape", "b"],
      ["gap", "c"],
      ["trailing-bytes", undefined],
    ]);
  });

  test("a million times: the list stays bounded and says how many more there are", () => {
    const faults = faultsOf(`{${Array.from({ length: 20_000 }, (_, i) => `"${i}":0`).join(",")}}`, 0);
    expect(faults).toHaveLength(1001);
    expect(faults.at(-1)!.found).toBe("19000 more");
  });
});
