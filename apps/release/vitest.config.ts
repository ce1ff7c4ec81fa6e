import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    name: "release",
    include: ["test/**/*.test.ts"],
    pool: "forks",
    // Packing puts binaries into the platform packages and takes them out again: one file at a time, after all other projects.
    fileParallelism: false,
    sequence: { groupOrder: 1 },
    testTimeout: 600_000,
    hookTimeout: 600_000,
  },
});
