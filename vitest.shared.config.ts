// Only the tests that compare with recordings kept outside this repository (K3_SHARED) or with NumPy (K3_PYTHON).
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    name: "shared",
    include: ["packages/*/test/**/*.shared.test.ts"],
    testTimeout: 600_000,
    hookTimeout: 600_000,
  },
});
