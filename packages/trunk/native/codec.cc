// Parsing of coded blocks, decoding by chunks, and the choice of the instruction set.
#include "codec.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "codec_format.h"

namespace k3::codec {
namespace {

struct Kernels {
  const char* name;
  DecodeChunk decode_chunk;
};

constexpr Kernels kScalar{"scalar", decode_chunk_scalar};

#ifdef K3_CODEC_NEON
constexpr Kernels kNeon{"neon", decode_chunk_neon};  // part of AArch64: nothing to ask the processor
#endif

#ifdef K3_CODEC_X86
constexpr Kernels kAvx2{"avx2", decode_chunk_avx2};
constexpr Kernels kAvx512{"avx512", decode_chunk_avx512};

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("popcnt");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}
#endif

const Kernels* find(const char* name) {
  if (std::strcmp(name, "scalar") == 0) return &kScalar;
#ifdef K3_CODEC_X86
  if (std::strcmp(name, "avx2") == 0 && has_avx2()) return &kAvx2;
  if (std::strcmp(name, "avx512") == 0 && has_avx512()) return &kAvx512;
#endif
#ifdef K3_CODEC_NEON
  if (std::strcmp(name, "neon") == 0) return &kNeon;
#endif
  return nullptr;
}

const Kernels* first_choice() {
  const char* wanted = std::getenv("K3_ISA");
  if (wanted != nullptr) {
    if (const Kernels* kernels = find(wanted)) return kernels;
  }
#ifdef K3_CODEC_X86
  if (has_avx512()) return &kAvx512;
  if (has_avx2()) return &kAvx2;
#endif
#ifdef K3_CODEC_NEON
  return &kNeon;
#else
  return &kScalar;
#endif
}

std::atomic<const Kernels*> g_kernels{nullptr};

const Kernels& kernels() {
  const Kernels* chosen = g_kernels.load(std::memory_order_acquire);
  if (chosen == nullptr) {
    chosen = first_choice();
    g_kernels.store(chosen, std::memory_order_release);
  }
  return *chosen;
}

uint32_t load_u32(const uint8_t* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}
uint32_t load_u16(const uint8_t* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8;
}

size_t values_of_chunk(const BlockView& view, size_t chunk) {
  const size_t first = chunk * kChunkValues;
  return view.values - first < kChunkValues ? view.values - first : kChunkValues;
}

// The counts of a chunk; its tail is codes of level 2, codes of level 3, then what is left: plain exponents.
bool read_directory(const BlockView& view, size_t chunk, size_t* offset, size_t counts[kLevels]) {
  const uint8_t* entry = view.directory + chunk * kDirectoryEntry;
  const size_t end = load_u32(entry + kDirectoryEntry);
  *offset = load_u32(entry);
  counts[0] = load_u16(entry + 4);
  counts[1] = load_u16(entry + 6);
  const size_t codes = code_bytes(counts[0]) + code_bytes(counts[1]);
  if (end < *offset || end - *offset < codes) return false;
  counts[2] = end - *offset - codes;
  return counts[0] <= values_of_chunk(view, chunk) && counts[1] <= counts[0] && counts[2] <= counts[1];
}

}  // namespace

bool parse_block(const uint8_t* stored, size_t stored_bytes, size_t raw_bytes, BlockView* view) {
  if (raw_bytes == 0 || raw_bytes % 2 != 0 || raw_bytes > kMaxRawBytes) return false;
  BlockView v;
  v.values = raw_bytes / 2;
  v.chunks = (v.values + kChunkValues - 1) / kChunkValues;
  const size_t directory_bytes = round_up((v.chunks + 1) * kDirectoryEntry, 64);
  const size_t padded = round_up(v.values, kGroupValues);
  const size_t fixed = kHeaderBytes + directory_bytes + padded + code_bytes(padded) + kTailPad;
  if (stored_bytes < fixed || stored_bytes >= raw_bytes) return false;
  if (stored[0] != kFormat || stored[1] != kLevels || load_u32(stored + kValuesAt) != v.values) return false;
  for (size_t level = 0; level < kLevels; ++level) {
    for (size_t k = 0; k < 3; ++k) v.dictionary[level][k] = stored[kDictionaryAt + level * 3 + k];
  }
  v.directory = stored + kHeaderBytes;
  v.sign_mantissa = v.directory + directory_bytes;
  v.codes = v.sign_mantissa + padded;
  v.tails = v.codes + code_bytes(padded);

  size_t expected = 0;
  for (size_t chunk = 0; chunk < v.chunks; ++chunk) {
    size_t offset, counts[kLevels];
    if (!read_directory(v, chunk, &offset, counts) || offset != expected) return false;
    expected = load_u32(v.directory + (chunk + 1) * kDirectoryEntry);
  }
  if (stored_bytes - fixed != expected) return false;
  *view = v;
  return true;
}

bool decode(const BlockView& view, size_t first_chunk, size_t chunk_count, uint16_t* out) {
  if (first_chunk > view.chunks || chunk_count > view.chunks - first_chunk) return false;
  const DecodeChunk decode_chunk = kernels().decode_chunk;
  Scratch scratch;
  std::memset(&scratch, 0, sizeof scratch);
  bool sound = true;
  for (size_t c = first_chunk; c < first_chunk + chunk_count; ++c, out += kChunkValues) {
    size_t offset;
    Chunk chunk;
    if (!read_directory(view, c, &offset, chunk.counts)) return false;  // cannot be, after parse_block
    chunk.values = values_of_chunk(view, c);
    chunk.sign_mantissa = view.sign_mantissa + c * kChunkValues;
    chunk.codes[0] = view.codes + c * (kChunkValues / kGroupValues * kGroupCodeBytes);
    chunk.codes[1] = view.tails + offset;
    chunk.codes[2] = chunk.codes[1] + code_bytes(chunk.counts[0]);
    chunk.plain = chunk.codes[2] + code_bytes(chunk.counts[1]);
    chunk.dictionary = view.dictionary;
    if (chunk.values % kGroupValues == 0) {
      sound &= decode_chunk(chunk, &scratch, out);
    } else {
      alignas(64) uint16_t whole_groups[kChunkValues];
      sound &= decode_chunk(chunk, &scratch, whole_groups);
      std::memcpy(out, whole_groups, chunk.values * 2);
    }
  }
  return sound;
}

const char* isa() {
  return kernels().name;
}

bool isa_available(const char* name) {
  return find(name) != nullptr;
}

bool set_isa(const char* name) {
  const Kernels* chosen = find(name);
  if (chosen == nullptr) return false;
  g_kernels.store(chosen, std::memory_order_release);
  return true;
}

}  // namespace k3::codec
