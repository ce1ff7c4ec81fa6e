// The layout of a coded block and of one chunk, shared by the encoder, the parser and the kernels. Plain
// functions in an anonymous namespace and no library headers: files that are compiled for one instruction set
// include this.
#pragma once

#include "codec.h"

namespace k3::codec {
namespace {

// Stored block: header | directory | sign and mantissa bytes | codes of level 1 | tails | kTailPad zero
// bytes.
constexpr uint8_t kFormat = 1;
constexpr size_t kHeaderBytes = 64;  // format, levels, u16 zero, u32 values, 3 x 3 dictionary entries, zeros
constexpr size_t kValuesAt = 4;      // in the header
constexpr size_t kDictionaryAt = 8;  // in the header
constexpr size_t kDirectoryEntry = 8;  // u32 offset of the tail, u16 values of level 2, u16 of level 3
// Codes come in groups of 64 values and 16 bytes: byte j has those of values j, 16 + j, 32 + j, 48 + j from
// bit 0 up.
constexpr size_t kGroupValues = 64;
constexpr size_t kGroupCodeBytes = 16;
constexpr uint8_t kOther = 3;  // the code of an exponent that the level's dictionary does not have

constexpr size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}
constexpr size_t code_bytes(size_t values) {
  return round_up(values, kGroupValues) / kGroupValues * kGroupCodeBytes;
}

}  // namespace

// Room that expansion may overwrite or overread behind the last value of a chunk.
inline constexpr size_t kSlack = 64;

// Exponent bytes of one level of one chunk.
struct alignas(64) LevelBuffer {
  uint8_t bytes[kChunkValues + kSlack];
};

// Per call of decode: what levels 2 and 3 gave, and the plain exponents. Zeroed, so that a damaged chunk that
// asks for more of them than there are gets zeros.
struct Scratch {
  LevelBuffer level[kLevels];
};

// One chunk, all pointers into the stored block. counts[k] values are handed from level k + 1 to level k + 2;
// counts[2] of them are plain exponent bytes.
struct Chunk {
  const uint8_t* sign_mantissa;
  const uint8_t* codes[kLevels];
  const uint8_t* plain;
  size_t values;
  size_t counts[kLevels];
  const uint8_t (*dictionary)[4];
};

// Decodes one chunk to round_up(values, kGroupValues) places of out. False when codes and counts contradict
// each other.
using DecodeChunk = bool (*)(const Chunk& chunk, Scratch* scratch, uint16_t* out);

bool decode_chunk_scalar(const Chunk& chunk, Scratch* scratch, uint16_t* out);
bool decode_chunk_avx2(const Chunk& chunk, Scratch* scratch, uint16_t* out);
bool decode_chunk_avx512(const Chunk& chunk, Scratch* scratch, uint16_t* out);
bool decode_chunk_neon(const Chunk& chunk, Scratch* scratch, uint16_t* out);

uint32_t crc32_table(const uint8_t* data, size_t bytes, uint32_t state);
// A multiple of 16 bytes, at least 64.
uint32_t crc32_pclmul(const uint8_t* data, size_t bytes, uint32_t state);
// A multiple of 256 bytes, at least 256.
uint32_t crc32_vpclmul(const uint8_t* data, size_t bytes, uint32_t state);
// A multiple of 8 bytes.
uint32_t crc32_arm(const uint8_t* data, size_t bytes, uint32_t state);

}  // namespace k3::codec
