// What would be published, for the checks that look at it: every package packed once by pnpm, as tarball and unpacked;
// without binaries for other processors where this machine cannot make them.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { unpackable } from "./platform-binary.mjs";

function must(command, args, cwd) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: "utf8" });
  if (status !== 0) throw new Error(`${command} ${args.join(" ")}\n${stdout}${stderr}${error ?? ""}`);
}

let dir;

/** @returns {{ name: string, tarball: string, unpacked: string }[]} one for each published package; gone when the process ends */
export function packed(root) {
  if (!dir) {
    dir = mkdtempSync(join(tmpdir(), "k3-packed-"));
    process.on("exit", () => rmSync(dir, { recursive: true, force: true }));
    const without = unpackable().flatMap(({ folder }) => ["--filter", `!./packages/${folder}`]);
    const filters = ["--filter", "./packages/*", ...without];
    must("pnpm", ["--recursive", ...filters, "pack", "--pack-destination", dir], root);
    for (const file of readdirSync(dir)) {
      mkdirSync(join(dir, "unpacked", file), { recursive: true });
      must("tar", ["-xzf", join(dir, file), "-C", join(dir, "unpacked", file)], dir);
    }
  }
  return readdirSync(join(dir, "unpacked")).map((file) => ({
    name: file.replace(/-\d.*$/, ""),
    tarball: join(dir, file),
    unpacked: join(dir, "unpacked", file, "package"),
  }));
}
