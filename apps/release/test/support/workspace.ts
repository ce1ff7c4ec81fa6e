import { spawn } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { unpackable } from "../../../../scripts/platform-binary.mjs";

export const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../../../..");

export interface Manifest {
  name: string;
  version: string;
  private?: boolean;
  exports?: Record<string, unknown>;
  main?: string;
  dependencies?: Record<string, string>;
  optionalDependencies?: Record<string, string>;
  bin?: Record<string, string>;
  scripts?: Record<string, string>;
}

export interface Published {
  /** Folder below packages/. */
  folder: string;
  dir: string;
  manifest: Manifest;
}

/** Every package of the workspace that is published. */
export const PUBLISHED: Published[] = readdirSync(join(ROOT, "packages"))
  .map((folder) => ({ folder, dir: join(ROOT, "packages", folder) }))
  .filter(({ dir }) => existsSync(join(dir, "package.json")))
  .map((place) => ({
    ...place,
    manifest: JSON.parse(readFileSync(join(place.dir, "package.json"), "utf8")) as Manifest,
  }))
  .filter(({ manifest }) => !manifest.private);

/** Those that are imported; the others hold a binary for one platform. */
export const LIBRARIES = PUBLISHED.filter(({ manifest }) => manifest.exports);
export const PLATFORM = PUBLISHED.filter(({ manifest }) => !manifest.exports);
/** Those of them that hold a binary for this machine. */
export const NATIVE = PLATFORM.filter(({ folder }) => folder.endsWith(`-linux-${process.arch}-gnu`));

/** Why this machine cannot pack some of them, by folder: a binary for another processor needs a cross compiler. */
export const UNPACKABLE = new Map<string, string>(
  unpackable().map(({ folder, why }: { folder: string; why: string }) => [folder, why]),
);
export const PACKABLE = PUBLISHED.filter(({ folder }) => !UNPACKABLE.has(folder));

/** Arguments of pnpm that select what is published, as far as this machine can pack it. */
export const SELECT = [
  "--recursive",
  ...["./packages/*", ...[...UNPACKABLE.keys()].map((folder) => `!./packages/${folder}`)].flatMap((each) => [
    "--filter",
    each,
  ]),
];

/** Arguments of pnpm that publish all that is published and not in the registry yet. */
export const PUBLISH = [...SELECT, "publish", "--no-git-checks", "--access", "public"];

export interface Result {
  status: number | null;
  stdout: string;
  stderr: string;
}

/** A temporary folder with what a package manager needs to stay away from the user's settings and cache. */
export class Sandbox {
  readonly dir: string;
  readonly env: NodeJS.ProcessEnv;

  /** @param registry where everything is to come from and to go */
  constructor(registry: string) {
    this.dir = mkdtempSync(join(tmpdir(), "k3-release-"));
    const { host } = new URL(registry);
    // A registry wants some token before npm publishes to it; this one takes any.
    this.write("npmrc", `registry=${registry}\n//${host}/:_authToken=nobody\n`);
    const path = (process.env["PATH"] ?? "")
      .split(delimiter)
      .filter((entry) => !entry.includes("node_modules/.bin"));
    const kept = Object.entries(process.env).filter(
      ([name]) => !/^(npm_|pnpm_|vitest|k3_|node_env$)/i.test(name),
    );
    this.env = {
      ...Object.fromEntries(kept),
      PATH: path.join(delimiter),
      CI: "true",
      npm_config_registry: registry,
      npm_config_userconfig: join(this.dir, "npmrc"),
      npm_config_cache: join(this.dir, "npm-cache"),
      npm_config_yes: "false", // npx runs what is installed, or nothing
      npm_config_audit: "false",
      npm_config_fund: "false",
      npm_config_update_notifier: "false",
    };
  }

  write(path: string, text: string): string {
    const file = join(this.dir, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
    return file;
  }

  /** A project with nothing but a package.json. */
  project(name: string, dependencies: Record<string, string> = {}): string {
    this.write(`${name}/package.json`, JSON.stringify({ name, private: true, type: "module", dependencies }));
    return join(this.dir, name);
  }

  run(command: string, args: readonly string[], cwd: string): Promise<Result> {
    return new Promise((done, fail) => {
      const child = spawn(command, args, { cwd, env: this.env, stdio: ["ignore", "pipe", "pipe"] });
      const result: Result = { status: null, stdout: "", stderr: "" };
      child.stdout.setEncoding("utf8").on("data", (text: string) => (result.stdout += text));
      child.stderr.setEncoding("utf8").on("data", (text: string) => (result.stderr += text));
      child.on("error", fail);
      child.on("close", (status) => done({ ...result, status }));
    });
  }

  /** As run, and throws with all output when the command fails. */
  async must(command: string, args: readonly string[], cwd: string): Promise<Result> {
    const result = await this.run(command, args, cwd);
    if (result.status === 0) return result;
    throw new Error(`${command} ${args.join(" ")}: ${result.status}\n${result.stdout}${result.stderr}`);
  }

  remove(): void {
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** How pnpm is started: the one that runs these tests, else the one that is installed. */
export function pnpm(args: readonly string[]): [command: string, args: string[]] {
  const running = process.env["npm_execpath"];
  return running && /pnpm\.c?js$/.test(running)
    ? [process.execPath, [running, ...args]]
    : ["pnpm", [...args]];
}
