import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    name: "gcp-lab",
    include: ["test/**/*.test.ts"],
    pool: "forks",
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
