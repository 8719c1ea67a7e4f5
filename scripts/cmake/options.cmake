# SPDX-License-Identifier: Apache-2.0
#
# Language, warnings, sanitizers, linker, compiler cache, and where an installed tree finds its own
# libraries. Everything here applies to every target of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

set(CMAKE_INSTALL_LIBDIR lib CACHE STRING "Libraries, relative to the prefix")

# One directory each for programs and libraries, laid out as the installed tree is, so that a
# program finds its neighbours by the same relative path in both.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

set(VITAMIN_SANITIZE "" CACHE STRING "Sanitizers for every target, for example address,undefined")

# Several sources a compilation: the headers of libraries take most of a compiler's time, and the
# whole tree compiles in less than half of it. -DCMAKE_UNITY_BUILD=OFF compiles each alone.
option(CMAKE_UNITY_BUILD "Compile several sources at a time" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

# Of shadowing only that of locals: a local may have the name of a constant in another source.
add_compile_options(-Wall -Wextra -Wshadow=local -Wconversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict)  # GCC 12 sees overlaps in std::string that are not there
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # No garbage collection before 2 GB: files that include much compile in up to a tenth less time.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=2000000>")
endif()
include_directories(${PROJECT_SOURCE_DIR})

if(VITAMIN_SANITIZE)
  # Whatever the build type says: unoptimised programs run several times longer, more optimisation
  # and full debug information compile up to twice as long. Assertions stay on (Debug). See also
  # vitamin_compile_quickly.
  add_compile_options(-O1 -g1)
  add_compile_options(-fsanitize=${VITAMIN_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  if(VITAMIN_SANITIZE MATCHES "address")
    # AddressSanitizer reports the access itself; checks ahead of each cost a fifth of the build.
    add_compile_options(-fno-sanitize=null)
  endif()
  add_link_options(-fsanitize=${VITAMIN_SANITIZE})
  if(VITAMIN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # fences: ours publish pages to other processes only
  endif()
  # A sanitized library preloaded into an ordinary program needs its runtime preloaded before it.
  string(REGEX MATCH "address|thread" _runtime "${VITAMIN_SANITIZE}")
  string(REPLACE "address" "libasan.so" _runtime "${_runtime}")
  string(REPLACE "thread" "libtsan.so" _runtime "${_runtime}")
  if(_runtime AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${_runtime}
                    OUTPUT_VARIABLE _runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
    get_filename_component(VITAMIN_SANITIZER_RUNTIME "${_runtime}" REALPATH)
  endif()
endif()

# vitamin_compile_quickly(<targets>...): tools and tests, which are compiled for longer than they
# run in all tests together. Takes two thirds of the time without sanitizers, half with
# AddressSanitizer and UndefinedBehaviorSanitizer; with ThreadSanitizer it makes no difference.
function(vitamin_compile_quickly)
  set(level "")
  if(VITAMIN_SANITIZE MATCHES "address")
    set(level -O0)
  elseif(NOT VITAMIN_SANITIZE AND CMAKE_BUILD_TYPE MATCHES "Rel")
    set(level -O1)
  endif()
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE ${level})
  endforeach()
endfunction()

# vitamin_text: formatting and the daemon's log. Installed programs carry both, as headers. A build
# with sanitizers is never installed and links Debian's libraries: to compile the headers again
# takes a third of the time of every file that formats.
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
add_library(vitamin_text INTERFACE)
if(VITAMIN_SANITIZE)
  target_link_libraries(vitamin_text INTERFACE fmt::fmt spdlog::spdlog)
else()
  target_link_libraries(vitamin_text INTERFACE fmt::fmt-header-only)
  target_compile_definitions(vitamin_text INTERFACE SPDLOG_FMT_EXTERNAL)
endif()

find_program(VITAMIN_CCACHE ccache)
if(VITAMIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the source directory count relative to it, so that every clone shares the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      ${VITAMIN_CCACHE})
endif()

find_program(VITAMIN_LINKER NAMES mold ld.lld)
if(CMAKE_CROSSCOMPILING)
  # The cross compiler finds no other than its own.
elseif(VITAMIN_LINKER MATCHES "mold$")
  add_link_options(-fuse-ld=mold)
elseif(VITAMIN_LINKER)
  add_link_options(-fuse-ld=lld)
endif()
