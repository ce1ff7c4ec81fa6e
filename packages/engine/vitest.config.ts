import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    name: "engine",
    include: ["test/**/*.test.ts"],
    pool: "forks",
    globalSetup: "test/global-setup.ts",
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
