# Read by CMake right after llama.cpp's own project() line, through the documented variable
# CMAKE_PROJECT_llama.cpp_INCLUDE. llama-cpp-python forces llama.cpp's `common` library on in the
# cache; a normal variable of the same name wins over it. Edgewise uses neither that library nor
# what builds on it (tools, server, tests), and leaving them out halves the build.
set(LLAMA_BUILD_COMMON OFF)
set(LLAMA_BUILD_TOOLS OFF)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_SERVER OFF)
set(LLAMA_BUILD_APP OFF)

# GCC's header tells the compiler that `ldtilecfg` reads 8 bytes of its 64; the optimiser drops the
# stores to the rest, and the first prompt ends in a general protection fault (seen with GCC 12.2).
# Processors with AMX run the AVX-512 kernels instead.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mno-amx-tile EDGEWISE_COMPILER_KNOWS_AMX)
  if(EDGEWISE_COMPILER_KNOWS_AMX)
    add_compile_options(-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
  endif()
endif()
