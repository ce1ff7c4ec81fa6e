import { execFileSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

/** Compiles eviction.cc with the store of `native` into a directory; gives a function that runs it. */
export function buildEviction(directory, native = resolve(import.meta.dirname, "../native")) {
  const program = join(directory, "eviction");
  const weights = join(directory, "experts");
  writeFileSync(weights, Buffer.alloc(4096, 7));
  const own = ["expert_store.cc", "expert_table.cc", "expert_worth.cc", "file_reader.cc", "memory.cc"].map(
    (file) => join(native, file),
  );
  const sources = [join(import.meta.dirname, "eviction.cc"), ...own].filter((file) => existsSync(file));
  const flags = ["-std=c++20", "-O2", "-pthread", "-D_FILE_OFFSET_BITS=64", "-I", native];
  execFileSync(process.env["CXX"] ?? "c++", [...flags, ...sources, "-o", program], { stdio: "inherit" });
  return (...settings) => execFileSync(program, [weights, ...settings.map(String)], { encoding: "utf8" });
}
