// Adds up what .ci/run ran, and prints the closing line. A step that failed without a test counting as failed (a build
// error, a crash) counts as one failure, so that nothing can be lost between the numbers.
import { readFileSync } from "node:fs";
import { join } from "node:path";

const reports = process.argv[2];
let passed = 0;
let failed = 0;
for (const step of ["tests", "check", "shared", "chaos"]) {
  const ok = readFileSync(join(reports, `${step}.exit`), "utf8").trim() === "exit 0";
  let counts = { numPassedTests: 0, numFailedTests: 0 };
  if (step !== "check") {
    try {
      counts = JSON.parse(readFileSync(join(reports, `${step}.json`), "utf8"));
    } catch (error) {
      console.log(`${step}: no report: ${error.message}`);
    }
  }
  passed += counts.numPassedTests + (step === "check" && ok ? 1 : 0);
  failed += counts.numFailedTests + (!ok && counts.numFailedTests === 0 ? 1 : 0);
  if (!ok) console.log(`${step}: failed`);
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
