import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { python } from "@k3/testkit";
import { describe, expect, test } from "vitest";
import { verify } from "../src/verify.ts";
import { temporaryDirectory } from "./model.ts";

/** 1.3 GB of disk and half a minute of work, so only nightly, or with a twin that exists (K3_TWIN). */
const twin = process.env["K3_TWIN"];
const { path, skip } = python();
const reason = twin
  ? undefined
  : (skip ?? (process.env["K3_NIGHTLY"] ? undefined : "neither K3_TWIN nor K3_NIGHTLY is set"));

describe.skipIf(reason)(`the full-size sparse twin${reason ? ` (skipped: ${reason})` : ""}`, () => {
  test("has a sound structure in all its 1.56 TB", { timeout: 600_000 }, async () => {
    const dir = twin ?? (await temporaryDirectory());
    if (!existsSync(join(dir, "config.json"))) {
      execFileSync(path!, [join(import.meta.dirname, "../../../tools/reference/make_twin.py"), dir]);
    }
    expect(await verify({ dir, level: "structure" })).toMatchObject({
      ok: true,
      checked: 96,
      bytes: 1_560_936_091_448,
      faults: [],
    });
  });
});
