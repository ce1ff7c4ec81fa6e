import fc from "fast-check";
import { expect, test } from "vitest";
import { parseRange } from "../src/hub/body.ts";

// Expected values from RFC 9110, section 14.1.2.
test("byte ranges of a file of 10,000 bytes", () => {
  expect(parseRange("bytes=0-499", 10_000)).toEqual({ start: 0, end: 500 });
  expect(parseRange("bytes=500-999", 10_000)).toEqual({ start: 500, end: 1000 });
  expect(parseRange("bytes=-500", 10_000)).toEqual({ start: 9500, end: 10_000 });
  expect(parseRange("bytes=9500-", 10_000)).toEqual({ start: 9500, end: 10_000 });
  expect(parseRange("bytes=9500-20000", 10_000)).toEqual({ start: 9500, end: 10_000 });
  expect(parseRange("bytes=-20000", 10_000)).toEqual({ start: 0, end: 10_000 });
  expect(parseRange("bytes=10000-", 10_000)).toBe("unsatisfiable");
  expect(parseRange("bytes=-0", 10_000)).toBe("unsatisfiable");
  for (const ignored of [
    null,
    "",
    "bytes=",
    "bytes=-",
    "bytes=5-4",
    "bytes=0-1,3-4",
    "items=0-1",
    "bytes=a-b",
  ]) {
    expect(parseRange(ignored, 10_000)).toBe(null);
  }
});

test("a range is inside the file and not empty, whatever is asked", () => {
  const bound = fc.option(fc.nat({ max: 2 ** 31 }), { nil: "" as const });
  fc.assert(
    fc.property(bound, bound, fc.nat({ max: 2 ** 31 }), (first, last, size) => {
      const range = parseRange(`bytes=${first}-${last}`, size);
      if (range === null || range === "unsatisfiable") return;
      expect(range.start).toBeGreaterThanOrEqual(0);
      expect(range.end).toBeGreaterThan(range.start);
      expect(range.end).toBeLessThanOrEqual(size);
    }),
  );
});
