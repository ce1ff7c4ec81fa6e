// The encoder. Counting and compaction are scalar, the rest is left to the compiler's baseline vectors: it is
// faster than a disk as it is, and gives the same bytes everywhere.
#include <algorithm>
#include <cstring>

#include "codec_format.h"

namespace k3::codec {
namespace {

void store_u16(uint8_t* p, size_t v) {
  p[0] = static_cast<uint8_t>(v);
  p[1] = static_cast<uint8_t>(v >> 8);
}
void store_u32(uint8_t* p, size_t v) {
  store_u16(p, v & 0xffff);
  store_u16(p + 2, v >> 16);
}

// Sign and mantissa bytes and exponent bytes of some values: the value rotated left by one, split in two.
void split(const uint8_t* raw, size_t values, uint8_t* sign_mantissa, uint8_t* exponents) {
  for (size_t i = 0; i < values; ++i) {
    uint16_t v;
    std::memcpy(&v, raw + 2 * i, 2);
    const auto rotated = static_cast<uint16_t>(v << 1 | v >> 15);
    sign_mantissa[i] = static_cast<uint8_t>(rotated);
    exponents[i] = static_cast<uint8_t>(rotated >> 8);
  }
}

// How often each exponent occurs. Four tables, so that runs of one exponent do not wait for the counter
// before.
void count_exponents(const uint8_t* raw, size_t values, uint32_t counts[256]) {
  uint32_t table[4][256] = {};
  size_t i = 0;
  for (; i + 4 <= values; i += 4) {
    uint64_t four;
    std::memcpy(&four, raw + 2 * i, 8);
    ++table[0][four >> 7 & 0xff];
    ++table[1][four >> 23 & 0xff];
    ++table[2][four >> 39 & 0xff];
    ++table[3][four >> 55 & 0xff];
  }
  for (; i < values; ++i) {
    uint16_t v;
    std::memcpy(&v, raw + 2 * i, 2);
    ++table[0][v >> 7 & 0xff];
  }
  for (size_t e = 0; e < 256; ++e) counts[e] = table[0][e] + table[1][e] + table[2][e] + table[3][e];
}

// The nine most frequent exponents, the smaller one first among equals.
void choose_dictionary(const uint32_t counts[256], uint8_t dictionary[kLevels * 3]) {
  uint8_t order[256];
  for (size_t e = 0; e < 256; ++e) order[e] = static_cast<uint8_t>(e);
  std::partial_sort(order, order + kLevels * 3, order + 256, [counts](uint8_t a, uint8_t b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  });
  std::memcpy(dictionary, order, kLevels * 3);
}

// Codes one level: code_bytes(values) bytes to codes, the exponents that are not in the dictionary to others
// (room for as many as there are values). `exponents` has room for a whole group at its end. Gives the number
// of others.
size_t encode_level(uint8_t* exponents, size_t values, const uint8_t entry[3], uint8_t* codes,
                    uint8_t* others) {
  const size_t padded = round_up(values, kGroupValues);
  std::memset(exponents + values, entry[0], padded - values);  // the padding has code 0
  size_t taken = 0;
  for (size_t i = 0; i < padded; i += kGroupValues) {
    const uint8_t* e = exponents + i;
    uint8_t code[kGroupValues];
    for (size_t j = 0; j < kGroupValues; ++j) {
      code[j] =
          static_cast<uint8_t>(3 - 3 * (e[j] == entry[0]) - 2 * (e[j] == entry[1]) - (e[j] == entry[2]));
    }
    uint8_t* c = codes + i / kGroupValues * kGroupCodeBytes;
    for (size_t j = 0; j < kGroupCodeBytes; ++j) {
      c[j] = static_cast<uint8_t>(code[j] | code[16 + j] << 2 | code[32 + j] << 4 | code[48 + j] << 6);
    }
    for (size_t j = 0; j < kGroupValues; ++j) {
      others[taken] = e[j];
      taken += code[j] == kOther;
    }
  }
  return taken;
}

}  // namespace

size_t encode_bound(size_t raw_bytes) {
  const size_t values = raw_bytes / 2;
  const size_t chunks = (values + kChunkValues - 1) / kChunkValues;
  const size_t padded = round_up(values, kGroupValues);
  const size_t fixed =
      kHeaderBytes + round_up((chunks + 1) * kDirectoryEntry, 64) + padded + code_bytes(padded);
  return fixed + chunks * (2 * code_bytes(kChunkValues) + kChunkValues) + kTailPad;
}

size_t encode(const uint8_t* raw, size_t raw_bytes, uint8_t* out) {
  if (raw_bytes == 0 || raw_bytes % 2 != 0 || raw_bytes > kMaxRawBytes) return 0;
  const size_t values = raw_bytes / 2;
  const size_t chunks = (values + kChunkValues - 1) / kChunkValues;
  uint32_t counts[256];
  count_exponents(raw, values, counts);
  uint8_t dictionary[kLevels * 3];
  choose_dictionary(counts, dictionary);

  const size_t directory_bytes = round_up((chunks + 1) * kDirectoryEntry, 64);
  const size_t padded = round_up(values, kGroupValues);
  uint8_t* directory = out + kHeaderBytes;
  uint8_t* sign_mantissa = directory + directory_bytes;
  uint8_t* codes = sign_mantissa + padded;
  uint8_t* tails = codes + code_bytes(padded);

  // The levels' sizes follow from the counts; a block that is far from shrinking need not be coded to see it.
  size_t left = values, bits = 8 * values;
  for (size_t level = 0; level < kLevels; ++level) {
    bits += 2 * left;
    for (size_t k = 0; k < 3; ++k) left -= counts[dictionary[level * 3 + k]];
  }
  if ((bits + 8 * left) / 8 + kHeaderBytes + directory_bytes + kTailPad >= raw_bytes) return 0;

  std::memset(out, 0, kHeaderBytes + directory_bytes);
  out[0] = kFormat;
  out[1] = kLevels;
  store_u32(out + kValuesAt, values);
  std::memcpy(out + kDictionaryAt, dictionary, sizeof dictionary);

  LevelBuffer first, second, third, plain;
  uint8_t* tail = tails;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t begin = chunk * kChunkValues;
    const size_t here = std::min(kChunkValues, values - begin);
    split(raw + 2 * begin, here, sign_mantissa + begin, first.bytes);
    const size_t n2 = encode_level(first.bytes, here, dictionary,
                                   codes + begin / kGroupValues * kGroupCodeBytes, second.bytes);
    uint8_t* entry = directory + chunk * kDirectoryEntry;
    store_u32(entry, static_cast<size_t>(tail - tails));
    const size_t n3 = encode_level(second.bytes, n2, dictionary + 3, tail, third.bytes);
    tail += code_bytes(n2);
    const size_t rest = encode_level(third.bytes, n3, dictionary + 6, tail, plain.bytes);
    tail += code_bytes(n3);
    std::memcpy(tail, plain.bytes, rest);
    tail += rest;
    store_u16(entry + 4, n2);
    store_u16(entry + 6, n3);
  }
  store_u32(directory + chunks * kDirectoryEntry, static_cast<size_t>(tail - tails));
  std::memset(sign_mantissa + values, 0, padded - values);
  std::memset(tail, 0, kTailPad);
  const size_t stored = static_cast<size_t>(tail - out) + kTailPad;
  return stored < raw_bytes ? stored : 0;
}

}  // namespace k3::codec
