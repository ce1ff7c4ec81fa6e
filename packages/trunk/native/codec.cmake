# The static library k3_codec: the trunk's bf16 codec and CRC-32, with run-time dispatch. Include it from any CMake
# project (@k3/engine does so through K3_TRUNK_NATIVE):
#
#     include(${K3_TRUNK_NATIVE}/codec.cmake)
#     target_link_libraries(my_addon PRIVATE k3_codec)        # then #include "codec.h", namespace k3::codec
include_guard(GLOBAL)

set(K3_CODEC_DIR ${CMAKE_CURRENT_LIST_DIR})
add_library(k3_codec STATIC
  ${K3_CODEC_DIR}/codec.cc ${K3_CODEC_DIR}/encode.cc ${K3_CODEC_DIR}/crc32.cc ${K3_CODEC_DIR}/decode_scalar.cc)
target_include_directories(k3_codec PUBLIC ${K3_CODEC_DIR})
target_compile_features(k3_codec PUBLIC cxx_std_20)
set_target_properties(k3_codec PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON)
target_compile_options(k3_codec PRIVATE -Wall -Wextra -ffp-contract=off)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  target_sources(k3_codec PRIVATE
    ${K3_CODEC_DIR}/decode_avx2.cc ${K3_CODEC_DIR}/decode_avx512.cc ${K3_CODEC_DIR}/crc32_pclmul.cc
    ${K3_CODEC_DIR}/crc32_vpclmul.cc)
  set_source_files_properties(${K3_CODEC_DIR}/decode_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mbmi;-mbmi2;-mpopcnt")
  # gcc 12 calls the undefined vectors of its own AVX-512 headers uninitialized (GCC bug 105593).
  set_source_files_properties(${K3_CODEC_DIR}/decode_avx512.cc PROPERTIES COMPILE_OPTIONS
    "-mavx2;-mbmi;-mbmi2;-mpopcnt;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vbmi;-mavx512vbmi2;-Wno-uninitialized;-Wno-maybe-uninitialized")
  set_source_files_properties(${K3_CODEC_DIR}/crc32_pclmul.cc PROPERTIES COMPILE_OPTIONS "-mpclmul;-msse4.1")
  set_source_files_properties(${K3_CODEC_DIR}/crc32_vpclmul.cc PROPERTIES COMPILE_OPTIONS
    "-mpclmul;-msse4.1;-mavx512f;-mavx512dq;-mvpclmulqdq;-Wno-uninitialized;-Wno-maybe-uninitialized")
  target_compile_definitions(k3_codec PRIVATE K3_CODEC_X86=1)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  target_sources(k3_codec PRIVATE ${K3_CODEC_DIR}/decode_neon.cc ${K3_CODEC_DIR}/crc32_arm.cc)
  set_source_files_properties(${K3_CODEC_DIR}/crc32_arm.cc PROPERTIES COMPILE_OPTIONS "-march=armv8-a+crc")
  target_compile_definitions(k3_codec PRIVATE K3_CODEC_NEON=1)
endif()
