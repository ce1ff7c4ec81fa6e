// The decoding kernel for AVX2. Bytes are put where a mask has ones by one shuffle per eight values, with a
// table of 256 shuffles; the places in the compacted stream come from population counts of the whole mask, so
// that the only dependency from one step to the next is one addition.
#include <immintrin.h>

#include "codec_format.h"

namespace k3::codec {
namespace {

struct ExpandTable {
  alignas(64) uint8_t shuffle[256][8];
};

// shuffle[m][j] is the rank of bit j among the ones of m, or 0x80 (gives zero) where bit j is not set.
constexpr ExpandTable make_expand_table() {
  ExpandTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    uint8_t rank = 0;
    for (unsigned j = 0; j < 8; ++j) table.shuffle[mask][j] = (mask >> j & 1) != 0 ? rank++ : 0x80;
  }
  return table;
}

constexpr ExpandTable kExpand = make_expand_table();

inline __m128i load_two(const uint8_t* low, const uint8_t* high) {
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low));
  return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64*>(high)));
}

// The order of the four runs of eight values in a vector: as they come, or the one from which unpacklo and
// unpackhi of bytes give 16 consecutive values each.
enum class Order { kNatural, kForUnpack };

inline __m256i four_runs(Order order, const uint8_t* r0, const uint8_t* r1, const uint8_t* r2,
                         const uint8_t* r3) {
  return order == Order::kNatural ? _mm256_set_m128i(load_two(r2, r3), load_two(r0, r1))
                                  : _mm256_set_m128i(load_two(r1, r3), load_two(r0, r2));
}

struct Half {
  __m256i exponents;
  unsigned taken;
};

// The exponents of 32 values: codes (one per byte, natural order) looked up, others filled in.
template <Order order>
inline Half expand_half(__m256i codes, __m256i dictionary, const uint8_t* others) {
  const unsigned mask =
      static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, _mm256_set1_epi8(kOther))));
  const unsigned p1 = static_cast<unsigned>(_mm_popcnt_u32(mask & 0xff));
  const unsigned p2 = static_cast<unsigned>(_mm_popcnt_u32(mask & 0xffff));
  const unsigned p3 = static_cast<unsigned>(_mm_popcnt_u32(mask & 0xffffff));
  const __m256i run = four_runs(order, others, others + p1, others + p2, others + p3);
  const __m256i shuffle = four_runs(order, kExpand.shuffle[mask & 0xff], kExpand.shuffle[mask >> 8 & 0xff],
                                    kExpand.shuffle[mask >> 16 & 0xff], kExpand.shuffle[mask >> 24]);
  const __m256i upper_runs = _mm256_set1_epi64x(0);
  const __m256i bias = _mm256_unpacklo_epi64(upper_runs, _mm256_set1_epi8(8));
  const __m256i filled = _mm256_shuffle_epi8(run, _mm256_or_si256(shuffle, bias));
  const __m256i placed = order == Order::kNatural ? codes : _mm256_permute4x64_epi64(codes, 0xd8);
  return {_mm256_or_si256(_mm256_shuffle_epi8(dictionary, placed), filled),
          static_cast<unsigned>(_mm_popcnt_u32(mask))};
}

// The dictionary as a shuffle table: code 3 gives zero, where the other exponent is then put.
inline __m256i load_dictionary(const uint8_t entry[4]) {
  return _mm256_set1_epi32(
      static_cast<int>(uint32_t{entry[0]} | uint32_t{entry[1]} << 8 | uint32_t{entry[2]} << 16));
}

inline __m256i codes_of(const uint8_t* codes, __m256i shifts) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_and_si256(_mm256_srlv_epi32(both, shifts), _mm256_set1_epi8(3));
}

const struct {
  alignas(32) uint32_t low[8] = {0, 0, 0, 0, 2, 2, 2, 2};
  alignas(32) uint32_t high[8] = {4, 4, 4, 4, 6, 6, 6, 6};
} kShifts;

size_t expand(const uint8_t* codes, size_t values, const uint8_t entry[4], const uint8_t* others,
              uint8_t* out) {
  const __m256i dictionary = load_dictionary(entry);
  const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(kShifts.low));
  const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(kShifts.high));
  size_t taken = 0;
  for (size_t i = 0; i < values; i += kGroupValues, codes += kGroupCodeBytes) {
    const Half a = expand_half<Order::kNatural>(codes_of(codes, low), dictionary, others + taken);
    taken += a.taken;
    const Half b = expand_half<Order::kNatural>(codes_of(codes, high), dictionary, others + taken);
    taken += b.taken;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), a.exponents);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 32), b.exponents);
  }
  return taken;
}

// exponent << 8 | mantissa << 1 | sign, rotated right by one, is the bf16 value.
inline __m256i rotate(__m256i x) {
  return _mm256_or_si256(_mm256_srli_epi16(x, 1), _mm256_slli_epi16(x, 15));
}

inline void store_values(__m256i exponents, const uint8_t* sign_mantissa, uint16_t* out) {
  const __m256i sm =
      _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sign_mantissa)), 0xd8);
  __m256i* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, rotate(_mm256_unpacklo_epi8(sm, exponents)));
  _mm256_storeu_si256(to + 1, rotate(_mm256_unpackhi_epi8(sm, exponents)));
}

}  // namespace
}  // namespace k3::codec

#include "decode_tail.h"

namespace k3::codec {

bool decode_chunk_avx2(const Chunk& chunk, Scratch* scratch, uint16_t* out) {
  const bool sound = expand_tail(chunk, scratch);
  const uint8_t* second = scratch->level[0].bytes;
  const __m256i dictionary = load_dictionary(chunk.dictionary[0]);
  const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(kShifts.low));
  const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(kShifts.high));
  const uint8_t* codes = chunk.codes[0];
  const uint8_t* sm = chunk.sign_mantissa;
  size_t taken = 0;
  for (size_t i = 0; i < chunk.values; i += kGroupValues, codes += kGroupCodeBytes) {
    const Half a = expand_half<Order::kForUnpack>(codes_of(codes, low), dictionary, second + taken);
    taken += a.taken;
    const Half b = expand_half<Order::kForUnpack>(codes_of(codes, high), dictionary, second + taken);
    taken += b.taken;
    store_values(a.exponents, sm + i, out + i);
    store_values(b.exponents, sm + i + 32, out + i + 32);
  }
  return sound && taken == chunk.counts[0];
}

}  // namespace k3::codec
