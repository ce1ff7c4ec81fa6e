#!/usr/bin/env node
// CommonJS on purpose: libuv sizes its thread pool before an ES module could set this. Slow disk writes must not
// starve name look-ups and reads, which share that pool.
process.env.UV_THREADPOOL_SIZE ??= "16";
import("../dist/main.js").then(
  ({ main }) => main(process.argv.slice(2)).then((code) => process.exit(code)),
  (error) => {
    console.error(`k3 is not built: ${error.message}\nRun \`pnpm build\` first.`);
    process.exit(1);
  },
);
