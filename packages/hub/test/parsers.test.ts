import { join, resolve, sep } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { chooseEndpoint, normaliseEndpoint, requireRepoName } from "../src/endpoint.ts";
import {
  parseContentRange,
  parseETag,
  parseLink,
  parseRateLimit,
  parseRetryAfter,
  signedUrlSeconds,
} from "../src/headers.ts";
import { localPath, requireSafePaths, unsafePath } from "../src/paths.ts";

describe("Content-Range", () => {
  it("round-trips every range, and is undefined for every malformed one", () => {
    fc.assert(
      fc.property(fc.maxSafeNat(), fc.nat(1e6), fc.nat(1e6), fc.boolean(), (first, length, rest, known) => {
        fc.pre(Number.isSafeInteger(first + length + rest + 1));
        const total = known ? first + length + rest + 1 : null;
        expect(parseContentRange(`bytes ${first}-${first + length}/${total ?? "*"}`)).toEqual({
          kind: "range",
          first,
          last: first + length,
          total,
        });
      }),
    );
    for (const text of [
      "",
      "bytes",
      "bytes 5-4/10",
      "bytes 0-10/10",
      "bytes 0-/10",
      "bytes -1/10",
      "items 0-1/2",
      "bytes */*",
      "bytes 0-1/2, bytes 3-4/5",
      "bytes 0-99999999999999999999/1",
      "bytes 0x1-2/3",
    ]) {
      expect([text, parseContentRange(text)]).toEqual([text, undefined]);
    }
    expect(parseContentRange("bytes */123")).toEqual({ kind: "unsatisfied", total: 123 });
  });

  it("never throws, whatever the header", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        parseContentRange(text);
        parseLink(text);
        parseRateLimit(text, text);
        parseRetryAfter(text, 0);
        parseETag(text);
      }),
    );
  });
});

describe("Link", () => {
  it("finds every target and relation, whatever parameters stand between", () => {
    const token = fc.stringMatching(/^[a-z][a-z0-9-]{0,8}$/);
    const target = fc.webUrl({ withQueryParameters: true }).filter((url) => !/[<>]/.test(url));
    const link = fc.record({
      target,
      rel: token,
      title: fc.stringMatching(/^[a-z ,;<>]{0,12}$/),
      quoted: fc.boolean(),
      gap: fc.constantFrom("", " ", "  "),
    });
    fc.assert(
      fc.property(fc.array(link, { minLength: 1, maxLength: 4 }), (links) => {
        const text = links
          .map(
            (l) => `<${l.target}>;${l.gap}title="${l.title}";${l.gap}rel=${l.quoted ? `"${l.rel}"` : l.rel}`,
          )
          .join(", ");
        expect(parseLink(text)).toEqual(links.map((l) => ({ target: l.target, rel: [l.rel] })));
      }),
    );
    expect(parseLink('<https://h/x?cursor=a%3D>; rel="prev next"')[0]!.rel).toEqual(["prev", "next"]);
  });
});

describe("RateLimit and Retry-After", () => {
  it("reads the Hub's form (hub.md 2.4) and lists of buckets", () => {
    expect(parseRateLimit('"resolvers";r=0;t=55', '"fixed window";"resolvers";q=3000;w=300')).toEqual([
      { bucket: "resolvers", remaining: 0, resetSeconds: 55, quota: 3000 },
    ]);
    expect(parseRateLimit('"api";r=7;t=1, "pages"; r=2 ; t=3')).toEqual([
      { bucket: "api", remaining: 7, resetSeconds: 1 },
      { bucket: "pages", remaining: 2, resetSeconds: 3 },
    ]);
    for (const text of [
      "",
      '"x"',
      '"x";r=1',
      '"x";r=-1;t=5',
      "r=1;t=2",
      '"x";r=1.5;t=2',
      '"x";r=99999999999999999999;t=1',
    ]) {
      expect([text, parseRateLimit(text)]).toEqual([text, []]);
    }
  });

  it("round-trips numbers", () => {
    const bucket = fc.constantFrom("api", "resolvers", "pages");
    fc.assert(
      fc.property(bucket, fc.nat(), fc.nat(), fc.nat(), (b, r, t, q) => {
        expect(parseRateLimit(`"${b}";r=${r};t=${t}`, `"fixed window";"${b}";q=${q};w=300`)).toEqual([
          { bucket: b, remaining: r, resetSeconds: t, quota: q },
        ]);
      }),
    );
  });

  it("Retry-After in seconds or as a date, never negative", () => {
    const now = Date.UTC(2026, 0, 1);
    expect(parseRetryAfter("120", now)).toBe(120);
    expect(parseRetryAfter("Thu, 01 Jan 2026 00:01:00 GMT", now)).toBe(60);
    expect(parseRetryAfter("Wed, 31 Dec 2025 00:00:00 GMT", now)).toBe(0);
    expect(parseRetryAfter("soon", now)).toBeUndefined();
    expect(parseRetryAfter("-5", now)).toBeUndefined();
  });
});

describe("life of signed URLs", () => {
  it("both kinds of signature that the Hub redirects to (captures in hub.md 2.3)", () => {
    const now = Date.UTC(2026, 3, 9, 12, 51, 14);
    const s3 =
      "https://cas-bridge.xethub.hf.co/x?X-Amz-Date=20260409T125114Z&X-Amz-Expires=3600&X-Amz-Signature=0";
    expect(signedUrlSeconds(new URL(s3), now)).toBe(3600);
    expect(signedUrlSeconds(new URL(s3), now + 3_601_000)).toBe(-1);
    const front = `https://us.aws.cdn.hf.co/x?Expires=${now / 1000 + 900}&Policy=p&Signature=s`;
    expect(signedUrlSeconds(new URL(front), now)).toBe(900);
    expect(signedUrlSeconds(new URL("https://h/x"), now)).toBeUndefined();
  });
});

describe("paths", () => {
  const hostile = fc.array(
    fc.constantFrom("..", ".", "a", "b", "", "/", "\\", "C:", "\u0000", "//h/s", ".cache", "con", "x ", "y."),
    { maxLength: 6 },
  );

  it("whatever passes stays inside the directory, on this system and by Windows' rules", () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string({ unit: "binary" }),
          hostile.map((parts) => parts.join("/")),
        ),
        (path) => {
          if (unsafePath(path) !== undefined) return;
          const full = resolve(localPath("/base", path));
          expect(full.startsWith(`/base${sep}`)).toBe(true);
          expect(full).toBe(join("/base", path));
          expect(/[\\:]|(^|\/)\.\.?(\/|$)/.test(path)).toBe(false);
        },
      ),
      { numRuns: 2000 },
    );
  });

  it("refuses what hub.md section 3 names", () => {
    for (const path of [
      "..",
      "../x",
      "a/../b",
      "/etc/passwd",
      "C:x",
      "c:\\x",
      "\\\\host\\share",
      "a\\b",
      "a//b",
      "a/",
      "./a",
      "x".repeat(256),
      ".cache/x",
      ".CACHE/huggingface/x",
      "a\nb",
      "nul",
      "aux.txt",
      "\ud800",
    ]) {
      expect([path, unsafePath(path)]).toEqual([path, expect.any(String)]);
    }
    for (const path of [
      "a",
      "a/b.c",
      ".gitattributes",
      "docs/ü 100%#1.md",
      "x".repeat(255),
      "..a",
      "a..b",
      "cache/x",
      ".cached",
    ]) {
      expect([path, unsafePath(path)]).toEqual([path, undefined]);
    }
  });

  it("refuses collisions: twice, in case, in Unicode form, file against directory", () => {
    for (const paths of [
      ["a", "a"],
      ["README", "readme"],
      ["\u00e9", "e\u0301"],
      ["a", "a/b"],
      ["A/x", "a"],
    ]) {
      expect(() => requireSafePaths(paths), paths.join()).toThrow(/refused/);
    }
    requireSafePaths(["a", "b/a", "b/c/a", "ab"]);
  });
});

describe("endpoints and repositories", () => {
  it("the one given, then HF_ENDPOINT, then the Hub; without a slash at the end", () => {
    expect(chooseEndpoint("http://h:1/", { HF_ENDPOINT: "https://mirror.test" })).toBe("http://h:1");
    expect(chooseEndpoint(undefined, { HF_ENDPOINT: "https://mirror.test/hf//" })).toBe(
      "https://mirror.test/hf",
    );
    expect(chooseEndpoint(undefined, { HF_ENDPOINT: "" })).toBe("https://huggingface.co");
  });

  it("what is none is a usage error that does not repeat it", () => {
    for (const bad of [
      "nonsense",
      "ftp://secret",
      "https://u:secret@h",
      "https://h?secret",
      "http://u:secret@",
    ]) {
      expect(() => normaliseEndpoint(bad), bad).toThrow(
        expect.objectContaining({ code: "E_USAGE", message: expect.not.stringContaining("secret") }),
      );
    }
    for (const bad of ["", "a/b/c", "../x", "a/..", "a b", "a?b", "/a"]) {
      expect(() => requireRepoName(bad), bad).toThrow(expect.objectContaining({ code: "E_USAGE" }));
    }
    for (const good of ["gpt2", "ns/name", "n.s/na-me_2.x"]) requireRepoName(good);
  });
});
