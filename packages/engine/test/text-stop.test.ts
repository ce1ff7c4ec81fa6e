import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createStopMatcher } from "../src/text/index.ts";

function run(stops: string[], pieces: string[]): { text: string; stopped: string | null } {
  const matcher = createStopMatcher(stops);
  let text = "";
  for (const piece of pieces) {
    const step = matcher.push(piece);
    text += step.text;
    if (step.stopped !== null) return { text, stopped: step.stopped };
  }
  return { text: text + matcher.end(), stopped: null };
}

describe("stop texts", () => {
  test.each<[string, string[], string[], string, string | null]>([
    ["within one piece", ["END"], ["abc END def"], "abc ", "END"],
    ["over three pieces", ["END"], ["abc E", "N", "D def"], "abc ", "END"],
    ["a beginning that does not go on", ["END"], ["EN", "EN", "x"], "ENENx", null],
    ["a beginning at the end of the text", ["END"], ["abc EN"], "abc EN", null],
    ["a beginning that overlaps itself", ["aab"], ["a", "a", "a", "b!"], "a", "aab"],
    ["the one completed first", ["abcd", "bc"], ["xabcd"], "xa", "bc"],
    ["the longest of those completed together", ["c", "abc"], ["xabc"], "x", "abc"],
    ["at once", ["a"], ["a"], "", "a"],
    ["none", [], ["a", "b"], "ab", null],
    ["a character above U+FFFF", ["🔥"], ["x🚀", "🔥y"], "x🚀", "🔥"],
  ])("%s", (_, stops, pieces, text, stopped) => {
    expect(run(stops, pieces)).toEqual({ text, stopped });
  });

  test("what may become a stop text is held back, and no more", () => {
    const matcher = createStopMatcher(["\n\nUser:", "STOP"]);
    expect(matcher.push("hi\n").text).toBe("hi");
    expect(matcher.push("\nUs").text).toBe("");
    expect(matcher.push("age").text).toBe("\n\nUsage");
    expect(matcher.push("ST").text).toBe("");
    expect(matcher.end()).toBe("ST");
  });

  test("after the stop nothing comes", () => {
    const matcher = createStopMatcher(["x"]);
    expect(matcher.push("axb")).toEqual({ text: "a", stopped: "x" });
    expect(matcher.push("more")).toEqual({ text: "", stopped: "x" });
    expect(matcher.end()).toBe("");
  });

  test("pieces change nothing, and the text is what a search from the left finds", () => {
    const letters = fc.array(fc.constantFrom("a", "b", "c"), { maxLength: 24 }).map((all) => all.join(""));
    const stop = fc
      .array(fc.constantFrom("a", "b", "c"), { minLength: 1, maxLength: 5 })
      .map((all) => all.join(""));
    fc.assert(
      fc.property(
        letters,
        fc.array(stop, { minLength: 1, maxLength: 3 }),
        fc.infiniteStream(fc.nat(3)),
        (text, stops, sizes) => {
          let expected: { text: string; stopped: string | null } = { text, stopped: null };
          for (let end = 1; end <= text.length && expected.stopped === null; end++) {
            const ended = stops
              .filter((one) => text.slice(0, end).endsWith(one))
              .sort((a, b) => b.length - a.length);
            if (ended[0] !== undefined)
              expected = { text: text.slice(0, end - ended[0].length), stopped: ended[0] };
          }
          const pieces: string[] = [];
          for (let at = 0; at < text.length; ) {
            const size = Number(sizes.next().value);
            pieces.push(text.slice(at, at + size));
            at += size;
          }
          expect(run(stops, pieces)).toEqual(expected);
        },
      ),
      { numRuns: 1000 },
    );
  });

  test.each(["", "\ud800"])("%j cannot be a stop text", (stop) => {
    expect(() => createStopMatcher([stop])).toThrow(expect.objectContaining({ code: "E_USAGE" }) as Error);
  });
});
