// kernels_test                         every check on every table that this CPU runs
//   --rounds N (default 400)           random shapes per table
//   --seed N (default 1)
//   --thorough                         finer grids, more rounds of the comparison with double
// kernels_test tables                  the names of the tables this CPU runs
// kernels_test decode TABLE ROWS COLS PACKED SCALES OUT     decodes MXFP4 from files to little-endian float32
#include <cstdlib>
#include <string>

#include "check.h"

namespace {

const char* const kNames[] = {"scalar", "avx2", "avx512", "neon"};

std::vector<uint8_t> read_file(const char* path) {
  std::vector<uint8_t> data;
  std::FILE* file = std::fopen(path, "rb");
  if (!file) return data;
  uint8_t buffer[65536];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
    data.insert(data.end(), buffer, buffer + n);
  std::fclose(file);
  return data;
}

int decode(char** argv) {
  const k3::Kernels* kernels = k3::kernels_for(argv[2]);
  const size_t rows = std::strtoull(argv[3], nullptr, 10), cols = std::strtoull(argv[4], nullptr, 10);
  const auto packed = read_file(argv[5]), scale = read_file(argv[6]);
  if (!kernels || packed.size() != rows * cols / 2 || scale.size() != rows * cols / 32) {
    std::fprintf(stderr, "unknown table, or files of other sizes than %zu x %zu needs\n", rows, cols);
    return 2;
  }
  std::vector<float> out(rows * cols);
  kernels->decode_mxfp4(packed.data(), scale.data(), rows, cols, out.data());
  std::FILE* file = std::fopen(argv[7], "wb");
  if (!file) return 2;
  const bool written = std::fwrite(out.data(), sizeof(float), out.size(), file) == out.size();
  return std::fclose(file) == 0 && written ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  size_t rounds = 400;
  uint64_t seed = 1;
  bool thorough = false;
  if (argc == 8 && !std::strcmp(argv[1], "decode")) return decode(argv);
  if (argc == 2 && !std::strcmp(argv[1], "tables")) {
    for (const char* name : kNames)
      if (k3::kernels_for(name)) std::printf("%s\n", name);
    return 0;
  }
  for (int i = 1; i < argc; i++) {
    if (!std::strcmp(argv[i], "--thorough")) {
      thorough = true;
    } else if (!std::strcmp(argv[i], "--rounds") && i + 1 < argc) {
      rounds = std::strtoull(argv[++i], nullptr, 10);
    } else if (!std::strcmp(argv[i], "--seed") && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  k3::test::Tally tally;
  for (const char* name : kNames) {
    const k3::Kernels* kernels = k3::kernels_for(name);
    if (!kernels) {
      std::printf("%s: not run, this CPU does not have it\n", name);
      continue;
    }
    tally.check(!std::strcmp(kernels->name, name), "name", name);
    k3::test::check_mxfp4(tally, *kernels);
    if (!std::strcmp(name, "scalar")) {
      k3::test::check_accuracy(tally, *kernels, seed, thorough);
    } else {
      k3::test::check_paths(tally, *kernels, seed, rounds);
    }
    std::printf("%s: done, seed %llu\n", name, static_cast<unsigned long long>(seed));
  }
  tally.check(k3::kernels_for("sse9") == nullptr, "an unknown name gives no table", "dispatch");
  tally.check(k3::kernels_for(nullptr) != nullptr, "there is always a table", "dispatch");
  std::printf("%ld passed, %ld failed\n", tally.passed, tally.failed);
  return tally.failed ? 1 : 0;
}
