# SPDX-License-Identifier: Apache-2.0
#
# Finds the CUDA headers (and nvcc, when it is there). Nothing links a CUDA library.
#
#   VITAMIN_CUDA_INCLUDE_DIR   directory of cuda.h (CUDA_VERSION >= 12040) and cudaTypedefs.h, or
#                              empty
#   VITAMIN_CUDA_VERSION       as "13.0"
#   VITAMIN_HAVE_CUDA          headers found: backend, interposer and software libcuda are built
#   VITAMIN_NVCC               the compiler for the GPU binaries of the demo and the tests, or empty
#
# VITAMIN_REQUIRE_CUDA=ON turns "not found" into an error: for machines that must not skip it.

option(VITAMIN_REQUIRE_CUDA "Stop when the CUDA parts cannot be built" OFF)
set(VITAMIN_CUDA_INCLUDE_DIR "" CACHE PATH "Directory of cuda.h; empty: look for a toolkit")

function(_vitamin_cuda_version include_dir result)
  set(${result} "" PARENT_SCOPE)
  if(EXISTS ${include_dir}/cuda.h AND EXISTS ${include_dir}/cudaTypedefs.h)
    file(STRINGS ${include_dir}/cuda.h line REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+$" number "${line}")
    set(${result} "${number}" PARENT_SCOPE)
  endif()
endfunction()

# Toolkits in order of how explicitly the user named them; the first that is new enough wins.
function(_vitamin_find_cuda)
  set(roots "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
  find_program(nvcc_on_path nvcc NO_CACHE)
  if(nvcc_on_path)
    get_filename_component(nvcc_real "${nvcc_on_path}" REALPATH)
    cmake_path(GET nvcc_real PARENT_PATH bin)
    cmake_path(GET bin PARENT_PATH root)
    list(APPEND roots "${root}")
  endif()
  file(GLOB versioned LIST_DIRECTORIES true /usr/local/cuda-*)
  list(SORT versioned COMPARE NATURAL ORDER DESCENDING)
  list(APPEND roots /usr/local/cuda ${versioned} /opt/cuda)

  set(seen "")
  foreach(root IN LISTS roots)
    if(root STREQUAL "")
      continue()
    endif()
    foreach(include_dir ${root}/include ${root}/targets/x86_64-linux/include)
      _vitamin_cuda_version(${include_dir} number)
      if(number AND number GREATER_EQUAL 12040)
        set(VITAMIN_CUDA_INCLUDE_DIR ${include_dir} PARENT_SCOPE)
        find_program(VITAMIN_NVCC nvcc HINTS ${root}/bin NO_DEFAULT_PATH)
        return()
      elseif(number)
        string(APPEND seen " ${include_dir} (CUDA_VERSION ${number})")
      endif()
    endforeach()
  endforeach()
  if(seen)
    message(STATUS "CUDA: too old, 12.4 is needed:${seen}")
  endif()
endfunction()

if(VITAMIN_CUDA_INCLUDE_DIR)
  find_program(VITAMIN_NVCC nvcc HINTS ${VITAMIN_CUDA_INCLUDE_DIR}/../bin)
else()
  _vitamin_find_cuda()
endif()

if(VITAMIN_SANITIZE)
  set(VITAMIN_NVCC "")  # what is built with sanitizers runs on the software device only
endif()

set(VITAMIN_HAVE_CUDA FALSE)
set(VITAMIN_CUDA_VERSION "")
if(VITAMIN_CUDA_INCLUDE_DIR)
  _vitamin_cuda_version(${VITAMIN_CUDA_INCLUDE_DIR} _number)
  if(_number AND _number GREATER_EQUAL 12040)
    set(VITAMIN_HAVE_CUDA TRUE)
    math(EXPR _major "${_number} / 1000")
    math(EXPR _minor "${_number} % 1000 / 10")
    set(VITAMIN_CUDA_VERSION "${_major}.${_minor}")
  elseif(_number)
    message(FATAL_ERROR "${VITAMIN_CUDA_INCLUDE_DIR}/cuda.h has CUDA_VERSION ${_number}; "
                        "12040 (CUDA 12.4) or newer is needed.")
  else()
    message(FATAL_ERROR "${VITAMIN_CUDA_INCLUDE_DIR} has no cuda.h with a cudaTypedefs.h.")
  endif()
endif()

if(VITAMIN_REQUIRE_CUDA AND NOT VITAMIN_HAVE_CUDA)
  message(FATAL_ERROR "VITAMIN_REQUIRE_CUDA is on and no CUDA headers (>= 12.4) were found. "
                      "Set CUDA_HOME or -DVITAMIN_CUDA_INCLUDE_DIR=<directory of cuda.h>.")
endif()

if(VITAMIN_HAVE_CUDA AND NOT TARGET vitamin_cuda_headers)
  add_library(vitamin_cuda_headers INTERFACE)
  target_include_directories(vitamin_cuda_headers SYSTEM INTERFACE ${VITAMIN_CUDA_INCLUDE_DIR})
endif()
