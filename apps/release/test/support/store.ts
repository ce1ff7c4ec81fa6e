import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { ROOT } from "./workspace.ts";

const STORE = join(ROOT, "node_modules/.pnpm");

interface Installed {
  manifest: { name: string; version: string };
  tarball: Buffer;
}

/** Every version of a package in pnpm's virtual store, as a tarball of the registry's form (all below `package/`). */
export async function installedVersions(name: string): Promise<Installed[]> {
  const prefix = `${name.replace("/", "+")}@`;
  const versions = new Map<string, Installed>();
  for (const entry of readdirSync(STORE).filter((folder) => folder.startsWith(prefix))) {
    const dir = join(STORE, entry, "node_modules", name);
    const manifest = JSON.parse(readFileSync(join(dir, "package.json"), "utf8")) as Installed["manifest"];
    if (versions.has(manifest.version)) continue; // again, beside other peers
    // pnpm's store keeps equal files once: without --hard-dereference tar would write links, which npm skips.
    const { stdout } = await promisify(execFile)(
      "tar",
      [
        "-czf",
        "-",
        "--hard-dereference",
        "--exclude=./node_modules",
        "--transform=s,^\\./,package/,",
        "-C",
        dir,
        ".",
      ],
      { encoding: "buffer", maxBuffer: 1 << 28 },
    );
    versions.set(manifest.version, { manifest, tarball: stdout });
  }
  return [...versions.values()];
}
