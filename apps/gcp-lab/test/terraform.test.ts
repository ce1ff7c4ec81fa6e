import { rm } from "node:fs/promises";
import { describe, expect, it } from "vitest";
import { copyOfPlan, LAB, noTerraform, terraform } from "./support/terraform.ts";

const why = noTerraform ? ` (skipped: ${noTerraform})` : "";

describe.skipIf(noTerraform)(`terraform${why}`, () => {
  it("finds every file formatted", async () => {
    expect(await terraform(LAB, "fmt", "-check", "-recursive", "-diff")).toBe("");
  });

  it("passes the plan module's own tests, without any provider", async () => {
    const folder = await copyOfPlan();
    try {
      const report = await terraform(folder, "test", "-no-color");
      const [, passed, failed] = /(\d+) passed, (\d+) failed/.exec(report)!;
      expect(Number(failed)).toBe(0);
      expect(Number(passed)).toBeGreaterThan(30);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });
});
