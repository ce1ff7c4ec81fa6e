// The limits that the kernels are compared with: reading, and multiply-adds on registers.
#include <sys/mman.h>

#include <cstdlib>

#include "bench.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace k3::bench {

#ifdef __x86_64__

__attribute__((target("avx2"))) uint64_t read_bytes(const void* data, size_t n) {
  const auto* p = static_cast<const __m256i*>(data);
  __m256i sum[8] = {};
  for (size_t i = 0; i < n / sizeof(__m256i); i += 8)
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; j++) sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(p + i + j));
  for (size_t j = 1; j < 8; j++) sum[0] = _mm256_xor_si256(sum[0], sum[j]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sum[0], 0));
}

namespace {

constexpr size_t kChains = 12;

__attribute__((target("avx2,fma"))) float multiply_add_256(size_t count) {
  __m256 sum[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; i++) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (size_t done = 0; done < count; done += kChains * 8) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; i++) sum[i] = _mm256_fmadd_ps(sum[i], a, b);
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; i++) __asm__ volatile("" : "+x"(sum[i]));
  }
#pragma GCC unroll 12
  for (size_t i = 1; i < kChains; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  return _mm256_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f"))) float multiply_add_512(size_t count) {
  __m512 sum[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; i++) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (size_t done = 0; done < count; done += kChains * 16) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; i++) sum[i] = _mm512_fmadd_ps(sum[i], a, b);
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; i++) __asm__ volatile("" : "+v"(sum[i]));
  }
#pragma GCC unroll 12
  for (size_t i = 1; i < kChains; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  return _mm512_cvtss_f32(sum[0]);
}

}  // namespace

float multiply_add(bool wide, size_t count) {
  return wide ? multiply_add_512(count) : multiply_add_256(count);
}

#else

uint64_t read_bytes(const void* data, size_t n) {
  const auto* p = static_cast<const uint64_t*>(data);
  uint64_t sum[16] = {};
  for (size_t i = 0; i < n / sizeof(uint64_t); i += 16)
    for (size_t j = 0; j < 16; j++) sum[j] ^= p[i + j];
  for (size_t j = 1; j < 16; j++) sum[0] ^= sum[j];
  return sum[0];
}

#endif

void* allocate(size_t n) {
  void* p = std::aligned_alloc(size_t{2} << 20, n);
  if (!p) std::abort();
#ifdef MADV_HUGEPAGE
  madvise(p, n, MADV_HUGEPAGE);
#endif
  return p;
}

}  // namespace k3::bench
