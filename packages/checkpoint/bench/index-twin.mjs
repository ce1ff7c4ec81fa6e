// How fast and in how much memory the headers of a checkpoint are indexed:
//   python3 tools/reference/make_twin.py /tmp/twin && node packages/checkpoint/bench/index-twin.mjs /tmp/twin
import { checkStructure, openCheckpoint } from "../dist/index.js";

const dir = process.argv[2];
if (!dir || dir === "--help") {
  console.log("node packages/checkpoint/bench/index-twin.mjs MODEL_DIR");
  process.exit(dir ? 0 : 2);
}
for (let run = 1; run <= 3; run++) {
  const started = performance.now();
  const { dense, experts, opaque } = await openCheckpoint(dir);
  const seconds = (performance.now() - started) / 1000;
  const tensors = dense.length + 1 + experts.offsets.length + opaque.tensors;
  const megabytes = process.resourceUsage().maxRSS / 1024;
  console.log(
    `open ${run}: ${tensors} tensors in ${seconds.toFixed(2)} s, peak resident ${megabytes.toFixed(0)} MB`,
  );
}
const started = performance.now();
const { faults } = await checkStructure(dir);
console.log(`structure: ${faults.length} faults in ${((performance.now() - started) / 1000).toFixed(2)} s`);
