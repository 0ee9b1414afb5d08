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
