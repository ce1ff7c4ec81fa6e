import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { settle } from "../src/options.ts";
import { judge } from "../src/range-check.ts";
import { matcher } from "../src/selection.ts";

describe("judging an answer", () => {
  const size = fc.integer({ min: 2, max: 1e9 });
  it("accepts a 206 only with exactly the range and total asked for", () => {
    fc.assert(
      fc.property(
        size,
        fc.nat(),
        fc.nat(),
        fc.integer({ min: -3, max: 3 }),
        fc.integer({ min: -3, max: 3 }),
        fc.integer({ min: -3, max: 3 }),
        (n, a, b, da, db, dn) => {
          const [first, last] = [a % n, b % n].sort((x, y) => x - y) as [number, number];
          fc.pre(first + da >= 0);
          const headers = { "content-range": `bytes ${first + da}-${last + db}/${n + dn}` };
          const { kind } = judge({ status: 206, headers }, first, last, n);
          expect(kind === "accept").toBe(da === 0 && db === 0 && dn === 0);
        },
      ),
    );
  });

  it("refuses any content coding and any length that does not fit", () => {
    const headers = { "content-range": "bytes 10-19/100", "content-length": "10" };
    expect(judge({ status: 206, headers }, 10, 19, 100).kind).toBe("accept");
    expect(
      judge({ status: 206, headers: { ...headers, "content-encoding": "identity" } }, 10, 19, 100).kind,
    ).toBe("accept");
    for (const bad of [
      { "content-encoding": "gzip" },
      { "content-length": "11" },
      { "content-length": "1e1" },
    ]) {
      expect(judge({ status: 206, headers: { ...headers, ...bad } }, 10, 19, 100).kind).toBe("reject");
    }
    expect(judge({ status: 206, headers: {} }, 10, 19, 100).kind).toBe("reject");
    expect(judge({ status: 200, headers: { "content-length": "100" } }, 10, 19, 100).kind).toBe("whole");
    expect(judge({ status: 200, headers: { "content-length": "100" } }, 0, 99, 100).kind).toBe("accept");
    expect(judge({ status: 200, headers: { "content-length": "99" } }, 0, 99, 100).kind).toBe("reject");
    expect(judge({ status: 416, headers: { "content-range": "bytes */99" } }, 10, 19, 100).kind).toBe(
      "contradiction",
    );
    expect(judge({ status: 416, headers: { "content-range": "bytes */100" } }, 10, 19, 100).kind).toBe(
      "reject",
    );
    expect(judge({ status: 301, headers: {} }, 10, 19, 100).kind).toBe("reject");
  });
});

describe("patterns", () => {
  it("mean what Python's fnmatch says (expected values computed with fnmatchcase of Python 3)", () => {
    const paths = [
      "config.json",
      "sub/deep/config.json",
      ".gitattributes",
      "sub/a",
      "sub/deep/b",
      "a.txt",
      "d.txt",
      "abc",
      "a/c",
      "x",
      "x{1,2}",
      "a",
      "!a",
      "+(a)",
      "axb",
      "[",
      "a]b",
      "a*b",
      "a\\xb",
      "a.json",
      "a/z/b",
    ];
    const expected: [string, string[]][] = [
      ["*.json", ["config.json", "sub/deep/config.json", "a.json"]],
      ["sub/*", ["sub/deep/config.json", "sub/a", "sub/deep/b"]],
      ["sub/", ["sub/deep/config.json", "sub/a", "sub/deep/b"]],
      ["[a-c]*.txt", ["a.txt"]],
      ["[!a]*.txt", ["d.txt"]],
      ["a?c", ["abc", "a/c"]],
      ["x{1,2}", ["x{1,2}"]],
      ["!a", ["!a"]],
      ["+(a)", ["+(a)"]],
      ["a.b", []],
      ["[", ["["]],
      ["a[]]b", ["a]b"]],
      ["a\\*b", ["a\\xb"]],
      ["?", ["x", "a", "["]],
      ["*.[jt]*", ["config.json", "sub/deep/config.json", "a.txt", "d.txt", "a.json"]],
      ["[]", []],
      ["a**b", ["axb", "a]b", "a*b", "a\\xb", "a/z/b"]],
      ["*", paths],
    ];
    for (const [pattern, matches] of expected) {
      expect([pattern, paths.filter(matcher([pattern]))]).toEqual([pattern, matches]);
    }
  });
});

describe("options", () => {
  it("options out of bounds are usage errors", () => {
    const base = { repo: "ns/name", dir: "x" };
    for (const bad of [
      { repo: "" },
      { repo: "a/b/c" },
      { repo: "../x" },
      { repo: "a/.." },
      { dir: "" },
      { revision: "" },
      { revision: "a..b" },
      { revision: "a b" },
      { concurrency: 0 },
      { concurrency: 17 },
      { concurrency: 1.5 },
      { limitRate: 0 },
      { endpoint: "huggingface.co" },
      { endpoint: "ftp://h" },
      { endpoint: "https://u:p@h" },
    ]) {
      expect(() => settle({ ...base, ...bad }), JSON.stringify(bad)).toThrow(
        expect.objectContaining({ code: "E_USAGE" }),
      );
    }
    for (const host of ["files.test:8443", "https://files.test", "files.test/", "*.files.test", ""]) {
      expect(() => settle({ ...base, cdnHosts: [host] }), host).toThrow(
        expect.objectContaining({ code: "E_USAGE", hint: expect.stringContaining("without a port") }),
      );
    }
    const cdnHosts = ["Files.Test", "[::1]", "127.0.0.2"];
    expect(settle({ ...base, cdnHosts }).cdnHosts).toEqual(["files.test", "[::1]", "127.0.0.2"]);
    expect(settle(base, { HF_ENDPOINT: "https://mirror.test/hf/" }).endpoint).toBe("https://mirror.test/hf");
    expect(settle(base, {}).endpoint).toBe("https://huggingface.co");
  });
});
