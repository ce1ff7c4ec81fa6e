# The target k3_kernels: the arithmetic of the engine, one table of functions per instruction set, chosen at run time.
# Each file gets its own -m flags; nothing else may be compiled with them.
set(K3_KERNELS_DIR ${CMAKE_CURRENT_LIST_DIR})
add_library(k3_kernels STATIC ${K3_KERNELS_DIR}/dispatch.cc ${K3_KERNELS_DIR}/scalar.cc)
set_target_properties(k3_kernels PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON)
target_include_directories(k3_kernels PUBLIC ${K3_KERNELS_DIR})
# -fno-math-errno: sqrtf is then one instruction. It changes no result.
target_compile_options(k3_kernels PRIVATE -O3 -ffp-contract=off -fno-math-errno -fvisibility=hidden -fvisibility-inlines-hidden)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  target_sources(k3_kernels PRIVATE ${K3_KERNELS_DIR}/avx2.cc ${K3_KERNELS_DIR}/avx512.cc)
  target_compile_definitions(k3_kernels PRIVATE K3_KERNELS_X86)
  set_source_files_properties(${K3_KERNELS_DIR}/avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${K3_KERNELS_DIR}/avx512.cc PROPERTIES
    COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mprefer-vector-width=512")
  # GCC 12 calls variables of its own avxintrin.h uninitialised (GCC bug 105593).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set_property(SOURCE ${K3_KERNELS_DIR}/avx512.cc APPEND PROPERTY COMPILE_OPTIONS "-Wno-uninitialized;-Wno-maybe-uninitialized")
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  target_sources(k3_kernels PRIVATE ${K3_KERNELS_DIR}/neon.cc)
  target_compile_definitions(k3_kernels PRIVATE K3_KERNELS_NEON)
endif()

# The test and the benchmark of the kernels, plain executables.
option(K3_KERNELS_TEST "Build kernels_test and kernels_bench" OFF)
if(K3_KERNELS_TEST)
  find_package(Threads REQUIRED)
  add_executable(kernels_test ${K3_KERNELS_DIR}/test/main.cc ${K3_KERNELS_DIR}/test/paths.cc ${K3_KERNELS_DIR}/test/accuracy.cc
    ${K3_KERNELS_DIR}/test/mxfp4.cc)
  add_executable(kernels_bench ${K3_KERNELS_DIR}/bench/main.cc ${K3_KERNELS_DIR}/bench/bounds.cc)
  foreach(target kernels_test kernels_bench)
    set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
    target_compile_options(${target} PRIVATE -ffp-contract=off)
    target_link_libraries(${target} PRIVATE k3_kernels Threads::Threads)
  endforeach()
endif()
