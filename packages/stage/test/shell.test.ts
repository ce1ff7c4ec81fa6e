import { execFileSync } from "node:child_process";
import fc from "fast-check";
import { expect, it } from "vitest";
import { shellWord } from "../src/index.ts";

it("what the shell makes of a word is the word, and plain ones stay as they are", () => {
  const text = fc.string({ unit: "binary", minLength: 1 }).filter((word) => !word.includes("\0"));
  fc.assert(
    fc.property(fc.array(text, { minLength: 1, maxLength: 20 }), (words) => {
      const line = `printf '%s\\0' ${words.map(shellWord).join(" ")}`;
      const read = execFileSync("sh", ["-c", line], { encoding: "utf8" }).split("\0").slice(0, -1);
      expect(read).toEqual(words.map((word) => Buffer.from(word).toString()));
    }),
    { numRuns: 50 },
  );
  for (const word of ["/data/k3", "a-b_c.d", "moonshotai/Kimi-K3", "k=v"]) expect(shellWord(word)).toBe(word);
});
