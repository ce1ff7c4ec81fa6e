import { truncate } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { model, outcome, overwrite, REPO, REVISION, shard } from "./model.ts";

test("every fault says what to run next, ready to be pasted", async () => {
  const dir = await model();
  await truncate(join(dir, shard(1)), 10);
  await overwrite(join(dir, shard(3)), -1, "!");
  const { faults } = await outcome({ dir });
  const fetch = `k3 fetch ${REPO} --revision ${REVISION} --dir ${dir}`;
  expect(faults.map(({ kind, hint }) => [kind, hint])).toEqual([
    ["size", fetch],
    ["hash", `${fetch} --repair loads only what is damaged`],
  ]);
});
