# What the addons of @k3/trunk and @k3/engine are built with, and how one is made. Run through scripts/build-native.mjs, which passes
# K3_NODE_INC (the headers of Node-API) and K3_TRUNK_NATIVE (this directory).
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# No contraction: the compiler may not fuse what the source does not, or instruction sets would differ in the last bit.
add_compile_options(-Wall -Wextra -ffp-contract=off -fvisibility=hidden -fvisibility-inlines-hidden)

set(K3_SANITIZE "" CACHE STRING "Sanitizers, such as address,undefined or thread")
if(K3_SANITIZE)
  add_compile_options(-fsanitize=${K3_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined -g)
  add_link_options(-fsanitize=${K3_SANITIZE})
endif()

find_package(Threads REQUIRED)

# k3_add_addon(NAME SOURCE...): Release/NAME.node of the build directory.
function(k3_add_addon name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".node" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/Release)
  target_include_directories(${name} SYSTEM PRIVATE ${K3_NODE_INC})
  # SWALLOW: what cannot be thrown because the environment is ending (a worker thread that is terminated) is no fatal error.
  target_compile_definitions(${name} PRIVATE NAPI_VERSION=9 NODE_ADDON_API_DISABLE_CPP_EXCEPTIONS
    NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS NODE_GYP_MODULE_NAME=${name})
  if(APPLE)
    target_link_options(${name} PRIVATE -undefined dynamic_lookup)
  endif()
endfunction()
