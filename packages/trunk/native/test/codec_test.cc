// codec_test [ROUNDS [SEED]]: random blocks through every instruction set of this machine, and CRC-32 against
// its definition. Prints each instruction set that was tried, then "N passed, M failed".
#include "codec.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace k3::codec;

const char* const kIsas[] = {"scalar", "avx2", "avx512", "neon"};

long passed = 0;
long failed = 0;

void check(bool good, const char* what, const char* isa, size_t values) {
  if (good) {
    passed++;
  } else if (++failed <= 50) {
    std::printf("FAILED %s (%s), %zu values\n", what, isa, values);
  }
}

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return bits() % n; }

 private:
  uint64_t state_;
};

// bf16 values of which some part has arbitrary bits and the rest one of a few exponents, the first ones most
// often.
std::vector<uint8_t> any_block(Random& random) {
  const size_t values = random.below(2) ? 1 + random.below(700) : 3900 + random.below(9000);
  const size_t exponents = 1 + random.below(30), wild = random.below(60);
  const size_t first = random.below(256);
  std::vector<uint8_t> raw(2 * values);
  for (size_t i = 0; i < values; i++) {
    auto bits = static_cast<uint16_t>(random.bits());
    if (random.below(256) >= wild) {
      const size_t which = random.below(1 + random.below(1 + random.below(exponents)));
      bits = static_cast<uint16_t>((bits & 0x807f) | ((first + 7 * which) & 255) << 7);
    }
    raw[2 * i] = static_cast<uint8_t>(bits);
    raw[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
  }
  return raw;
}

// The decoded bytes of some chunks, from a buffer of exactly their size that no vector is aligned in.
bool decode_bytes(const BlockView& view, size_t first, size_t count, std::vector<uint8_t>* out) {
  const size_t end = first + count == view.chunks ? view.values : (first + count) * kChunkValues;
  const size_t bytes = 2 * (end - first * kChunkValues);
  std::vector<uint8_t> buffer(bytes + 2);
  const bool sound = decode(view, first, count, reinterpret_cast<uint16_t*>(buffer.data() + 2));
  out->assign(buffer.begin() + 2, buffer.end());
  return sound;
}

// `isas`: those of this machine, scalar first.
void check_block(Random& random, const std::vector<const char*>& isas) {
  const std::vector<uint8_t> raw = any_block(random);
  const size_t values = raw.size() / 2;
  std::vector<uint8_t> stored(encode_bound(raw.size()));
  stored.resize(encode(raw.data(), raw.size(), stored.data()));
  if (stored.empty()) return;  // it would not be smaller
  BlockView view;
  check(parse_block(stored.data(), stored.size(), raw.size(), &view), "parse_block", "", values);
  const size_t first = random.below(view.chunks), count = random.below(view.chunks - first + 1);
  std::vector<uint8_t> out;
  for (const char* isa : isas) {
    set_isa(isa);
    check(decode_bytes(view, 0, view.chunks, &out) && out == raw, "decode", isa, values);
    const bool sound = decode_bytes(view, first, count, &out);
    check(sound && std::memcmp(out.data(), raw.data() + first * kChunkBytes, out.size()) == 0,
          "decode of some chunks", isa, values);
  }
  // Damaged: the same verdict and the same bytes everywhere.
  for (size_t n = 1 + random.below(8); n > 0; n--)
    stored[random.below(2) ? random.below(stored.size()) : random.below(160) % stored.size()] =
        static_cast<uint8_t>(random.bits());
  if (!parse_block(stored.data(), stored.size(), raw.size(), &view)) return;
  std::vector<uint8_t> expected;
  bool verdict = false;
  for (const char* isa : isas) {
    set_isa(isa);
    const bool sound = decode_bytes(view, 0, view.chunks, &out);
    if (isa == isas[0]) {
      verdict = sound;
      expected = out;
    } else {
      check(sound == verdict && out == expected, "decode of a damaged block", isa, values);
    }
  }
}

uint32_t crc_by_definition(const uint8_t* p, size_t n, uint32_t seed) {
  uint32_t state = ~seed;
  for (size_t i = 0; i < n; i++) {
    state ^= p[i];
    for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? 0xEDB88320u : 0);
  }
  return ~state;
}

void check_crc(Random& random) {
  // CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms: check 0xCBF43926.
  check(crc32("123456789", 9) == 0xcbf43926u, "crc32 check value", "", 9);
  std::vector<uint8_t> bytes(1200);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random.bits());
  for (size_t n = 0; n < 1100; n++) {
    const uint8_t* p = bytes.data() + n % 61;
    const auto seed = static_cast<uint32_t>(random.bits());
    check(crc32(p, n, seed) == crc_by_definition(p, n, seed), "crc32", "", n);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const size_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 400;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  std::vector<const char*> isas;
  for (const char* isa : kIsas)
    if (isa_available(isa)) isas.push_back(isa);
  for (size_t i = 0; i < rounds; i++) check_block(random, isas);
  check_crc(random);
  for (const char* isa : isas) std::printf("%s: done\n", isa);
  std::printf("%ld passed, %ld failed\n", passed, failed);
  return failed ? 1 : 0;
}
