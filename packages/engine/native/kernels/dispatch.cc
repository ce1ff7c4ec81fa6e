// Chooses the table at run time. Compiled for the baseline, so that it runs anywhere.
#include <cstring>

#include "tables.h"

namespace k3 {
namespace {

[[maybe_unused]] bool runs_avx2() {
#ifdef K3_KERNELS_X86
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

[[maybe_unused]] bool runs_avx512() {
#ifdef K3_KERNELS_X86
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace

const Kernels* kernels_for(const char* name) {
#ifdef K3_KERNELS_X86
  if ((!name || !std::strcmp(name, "avx512")) && runs_avx512()) return avx512_kernels();
  if ((!name || !std::strcmp(name, "avx2")) && runs_avx2()) return avx2_kernels();
#endif
#ifdef K3_KERNELS_NEON  // part of AArch64: nothing to ask the processor
  if (!name || !std::strcmp(name, "neon")) return neon_kernels();
#endif
  if (!name || !std::strcmp(name, "scalar")) return scalar_kernels();
  return nullptr;
}

}  // namespace k3
