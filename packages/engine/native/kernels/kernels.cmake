# The target k3_kernels: the arithmetic of the engine, one table of functions per instruction set, chosen at run time.
# Each file gets its own -m flags; nothing else may be compiled with them.
set(K3_KERNELS_DIR ${CMAKE_CURRENT_LIST_DIR})
add_library(k3_kernels STATIC ${K3_KERNELS_DIR}/dispatch.cc ${K3_KERNELS_DIR}/scalar.cc)
set_target_properties(k3_kernels PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON)
target_include_directories(k3_kernels PUBLIC ${K3_KERNELS_DIR})
# -fno-math-errno: sqrtf is then one instruction. It changes no result.
target_compile_options(k3_kernels PRIVATE -O3 -ffp-contract=off -fno-math-errno -fvisibility=hidden -fvisibility-inlines-hidden)

