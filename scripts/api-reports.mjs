// The public types of each published library as one file for review, etc/api/NAME.api.md, by api-extractor from dist/index.d.ts.
// `node scripts/api-reports.mjs` writes them, `--check` says which differ from what is committed. Build first: pnpm build.
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Extractor, ExtractorConfig, ExtractorLogLevel } from "@microsoft/api-extractor";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const reports = join(root, "etc/api");

function libraries() {
  return readdirSync(join(root, "packages"))
    .map((name) => ({ name, dir: join(root, "packages", name) }))
    .filter(({ dir }) => {
      const { private: hidden, exports } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
      return !hidden && exports?.["."]?.types;
    });
}

function config({ name, dir }, temp) {
  const quiet = { logLevel: ExtractorLogLevel.None, addToApiReportFile: false };
  return ExtractorConfig.prepare({
    configObjectFullPath: undefined,
    packageJsonFullPath: join(dir, "package.json"),
    configObject: {
      projectFolder: dir,
      mainEntryPointFilePath: join(dir, "dist/index.d.ts"),
      newlineKind: "lf",
      compiler: {
        overrideTsconfig: {
          compilerOptions: {
            target: "ES2024",
            lib: ["ES2024"],
            module: "NodeNext",
            moduleResolution: "NodeNext",
            types: ["node"],
            typeRoots: [join(root, "node_modules/@types")],
            strict: true,
            exactOptionalPropertyTypes: true,
            skipLibCheck: true,
          },
          files: [join(dir, "dist/index.d.ts")],
        },
      },
      apiReport: {
        enabled: true,
        reportFileName: `${name}.api.md`,
        reportFolder: reports,
        reportTempFolder: temp,
      },
      docModel: { enabled: false },
      dtsRollup: { enabled: false },
      tsdocMetadata: { enabled: false },
      messages: {
        compilerMessageReporting: { default: { logLevel: ExtractorLogLevel.Error } },
        extractorMessageReporting: {
          default: quiet,
          // A type that callers meet but cannot name: in the report, where review sees it.
          "ae-forgotten-export": { logLevel: ExtractorLogLevel.None, addToApiReportFile: true },
        },
        tsdocMessageReporting: { default: quiet },
      },
    },
  });
}

/** Extracts every library's report; with `write`, into etc/api. @returns one line for each that differs, or fails */
export function apiComplaints({ write = false } = {}) {
  mkdirSync(reports, { recursive: true });
  const temp = mkdtempSync(join(tmpdir(), "k3-api-"));
  const complaints = [];
  try {
    for (const library of libraries()) {
      if (!existsSync(join(library.dir, "dist/index.d.ts"))) {
        complaints.push(`packages/${library.name} is not built; run pnpm build`);
        continue;
      }
      const said = [];
      const result = Extractor.invoke(config(library, temp), {
        localBuild: write,
        messageCallback: (message) => {
          if (message.logLevel === ExtractorLogLevel.Error) said.push(message.text);
          message.handled = true;
        },
      });
      for (const text of said) complaints.push(`packages/${library.name}: ${text}`);
      if (result.apiReportChanged && !write)
        complaints.push(
          `etc/api/${library.name}.api.md differs from what the types are now; run node scripts/api-reports.mjs`,
        );
    }
    const names = new Set(libraries().map(({ name }) => `${name}.api.md`));
    for (const file of readdirSync(reports).filter((entry) => !names.has(entry))) {
      if (write) rmSync(join(reports, file));
      else complaints.push(`etc/api/${file} is of no package; run node scripts/api-reports.mjs`);
    }
  } finally {
    rmSync(temp, { recursive: true });
  }
  return complaints;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const complaints = apiComplaints({ write: !process.argv.includes("--check") });
  for (const line of complaints) console.error(line);
  process.exitCode = complaints.length > 0 ? 1 : 0;
}
