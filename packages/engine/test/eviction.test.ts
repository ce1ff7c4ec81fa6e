import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import { buildEviction } from "../bench/build-eviction.mjs";

let eviction: ReturnType<typeof buildEviction>;
beforeAll(() => {
  eviction = buildEviction(mkdtempSync(join(process.env["K3_ENGINE_TEST_DIR"]!, "eviction-")));
});

// Layers, experts of each, chosen by a token, cached: from a cache of nearly nothing to one of nearly all.
test.each([
  [1, 12, 3, 5],
  [7, 30, 4, 2],
  [7, 30, 4, 40],
  [7, 30, 4, 200],
  [20, 64, 8, 300],
])(
  "the store's decisions are the rule's, slot by slot: %i layers of %i experts, %i a token, %i cached",
  (...shape) => {
    for (const seed of [1, 2, 3]) {
      const output = eviction(...shape, 150, seed, "check");
      expect(output.match(/as the rule says/g)).toHaveLength(2);
    }
  },
);
