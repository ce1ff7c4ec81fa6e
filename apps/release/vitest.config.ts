import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    name: "release",
    include: ["test/**/*.test.ts"],
    pool: "forks",
    testTimeout: 300_000,
    hookTimeout: 300_000,
  },
});
