import type { Expected } from "./expected.ts";
import type { VerifyFault } from "./types.ts";

/** A path or name as a shell takes it. */
const quoted = (text: string) => (/^[\w./:@=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** Adds what to run or do next to a fault that does not say so itself. */
export function withHint(fault: VerifyFault, dir: string, expected: Expected | undefined): VerifyFault {
  const hint = fault.hint ?? hintFor(fault, dir, expected);
  return hint === undefined ? fault : { ...fault, hint };
}

function hintFor(
  { kind, tensor, path }: VerifyFault,
  dir: string,
  expected: Expected | undefined,
): string | undefined {
  const known = expected?.repo && expected.revision;
  const fetch = known
    ? `k3 fetch ${expected.repo} --revision ${expected.revision} --dir ${quoted(dir)}`
    : `k3 fetch REPO --revision COMMIT --dir ${quoted(dir)}`;
  switch (kind) {
    case "hash":
    case "damaged":
      return `${fetch} --repair loads only what is damaged`;
    case "lfs-pointer":
      return `the repository was cloned without Git LFS; instead: ${fetch}`;
    case "dangling-symlink":
      return "the directory was copied without what its links lead to: copy with links followed (rsync -L, cp -L)";
    case "changed":
      return "wait until the program that writes it has finished, and verify again";
    case "not-a-file":
      return `move it away, then: ${fetch}`;
    case "extra-file":
      return `remove ${quoted(path)}, if nothing needs it`;
    case "unreadable":
      return "check its permissions, and the health of the disk (dmesg, smartctl)";
    default:
      // A structure that is wrong although the file has its size: only its hash tells whether it was published so.
      return tensor === undefined
        ? fetch
        : `k3 verify ${quoted(dir)} tells whether the file is as it was published`;
  }
}
