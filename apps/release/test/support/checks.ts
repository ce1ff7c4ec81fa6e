import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { LIBRARIES, type Published, ROOT, type Sandbox } from "./workspace.ts";

/** The packages whose READMEs have a program to run; the command's has command lines. */
export const EXAMPLES = LIBRARIES.filter(({ manifest }) => !manifest.bin?.["k3"]);

/** The import statements of the runnable example in a package's README, which has to use the package itself. */
function exampleImports({ dir, manifest }: Published): string {
  const readme = readFileSync(join(dir, "README.md"), "utf8");
  const example = /```js\n(.*?)```/s.exec(readme)?.[1];
  const imports = example?.match(/^import\s[^;]+\sfrom\s"[^"]+";/gm)?.join("\n");
  if (!imports?.includes(`from "${manifest.name}"`))
    throw new Error(`${dir}/README.md has no example that imports ${manifest.name}`);
  return `${imports}\n`;
}

/** The README's imports, resolved and linked by Node.js in a project where the packages are installed. */
export async function expectExampleToLink(
  library: Published,
  sandbox: Sandbox,
  project: string,
): Promise<void> {
  const file = sandbox.write(join(project, `readme-${library.folder}.mjs`), exampleImports(library));
  await sandbox.must(process.execPath, [file], join(sandbox.dir, project));
}

/** Every library's declarations, all of them checked, as a strict project of somebody else sees them. */
export async function expectTypesToResolve(sandbox: Sandbox, project: string): Promise<void> {
  const lines = LIBRARIES.map(({ folder, manifest }) => `export * as ${folder} from "${manifest.name}";\n`);
  sandbox.write(join(project, "everything.ts"), lines.join(""));
  const options = ["--noEmit", "--strict", "--skipLibCheck", "false", "--target", "ES2022"];
  const node = ["--module", "NodeNext", "--types", "node"];
  const compiler = join(ROOT, "node_modules/typescript/bin/tsc");
  await sandbox.must(
    process.execPath,
    [compiler, ...options, ...node, "everything.ts"],
    join(sandbox.dir, project),
  );
}

const PROMPT = ["--prompt", "The capital of France is", "--quiet"];

/** The command, installed: its version, the miniature, and a sentence that the miniature knows. */
export async function expectToRun(
  sandbox: Sandbox,
  cwd: string,
  start: readonly [string, ...string[]] = ["npx", "k3"],
): Promise<void> {
  const [command, ...first] = start;
  const k3 = (...args: string[]) => sandbox.must(command, [...first, ...args], cwd);
  const cli = LIBRARIES.find(({ manifest }) => manifest.bin?.["k3"]);
  expect((await k3("--version")).stdout).toBe(`${cli?.manifest.version}\n`);
  await k3("miniature", "miniature", "--quiet");
  expect((await k3("run", "miniature", ...PROMPT)).stdout).toBe(" Paris.\n");
}

/** Without the engine's binary: a refusal (exit 2) that names the command which makes one. */
export async function expectToNameTheBuild(sandbox: Sandbox, cwd: string): Promise<void> {
  await sandbox.must("npx", ["k3", "miniature", "miniature", "--quiet"], cwd);
  const { status, stderr } = await sandbox.run("npx", ["k3", "run", "miniature", ...PROMPT], cwd);
  expect(stderr).toContain("npx k3-engine-build");
  expect(stderr).toContain("@k3/engine-linux-");
  expect(status).toBe(2);
}
