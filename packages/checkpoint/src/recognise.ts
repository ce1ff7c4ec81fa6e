import type { HeaderFault } from "./header.ts";

/**
 * Calls by its name what is found in the place of a weight file, from its first bytes (some hundred suffice), its size
 * and its blocks of 512 bytes on disk; undefined when it is none of these. Says nothing about what the file should be.
 */
export function recognise(head: Uint8Array, size: number, blocks: number): HeaderFault | undefined {
  const expected = "the weights themselves";
  if (size === 0) return { kind: "empty-file", expected, found: "a file of 0 bytes" };
  const text = Buffer.from(head.buffer, head.byteOffset, Math.min(head.length, 512)).toString("latin1");
  if (text.startsWith("version https://git-lfs.github.com/spec/")) {
    return { kind: "lfs-pointer", expected, found: `a Git LFS pointer file of ${size} bytes` };
  }
  if (/^\s*<(!doctype|html|\?xml|head|body)/i.test(text)) {
    return { kind: "html", expected, found: `an HTML or XML page of ${size} bytes` };
  }
  // Some filesystems count blocks late or not at all: only a file that also begins with zeros is called a hole.
  if (size >= 4096 && blocks === 0 && head.every((byte) => byte === 0)) {
    return {
      kind: "hole",
      expected,
      found: `${size} bytes of hole: space was reserved, nothing was written`,
    };
  }
  return undefined;
}
