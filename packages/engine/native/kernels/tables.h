// The table of each instruction set, defined in the file of that name.
#pragma once

#include "kernels.h"

namespace k3 {

const Kernels* scalar_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

}  // namespace k3
