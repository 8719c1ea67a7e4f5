# SPDX-License-Identifier: Apache-2.0
#
# Finds what the AMD parts need. Nothing of the product links a library of ROCm; the software AMD
# GPU links LLVM, its decoder.
#
#   VITAMIN_HIP_INCLUDE_DIR   directory of hip/hip_runtime_api.h, or empty
#   VITAMIN_HAVE_HIP          headers found: backend and interposer are built
#   VITAMIN_HAVE_SOFT_AMDGPU  the software AMD GPU, the programs for it and their tests are built
#   VITAMIN_AMD_MISSING       what was looked for and not found, in words; empty: everything
#
# VITAMIN_REQUIRE_AMD=ON turns "not found" into an error: for machines that must not skip it.

option(VITAMIN_REQUIRE_AMD "Stop when the AMD parts cannot be built" OFF)
option(VITAMIN_SOFT_AMDGPU "Build the software AMD GPU where its packages are found" ON)

# What programs of hipcc are built for. The tests over the software AMD GPU need both.
set(VITAMIN_HIP_ARCHITECTURES gfx90a gfx1030 CACHE STRING "AMD parts that programs are built for")
list(TRANSFORM VITAMIN_HIP_ARCHITECTURES PREPEND --offload-arch=
     OUTPUT_VARIABLE VITAMIN_HIP_TARGETS)

set(VITAMIN_AMD_MISSING "")
function(_vitamin_amd_needs variable words)
  if(NOT ${variable})
    set(VITAMIN_AMD_MISSING ${VITAMIN_AMD_MISSING} ${words} PARENT_SCOPE)
  endif()
endfunction()

find_path(VITAMIN_HIP_INCLUDE_DIR hip/hip_runtime_api.h
          HINTS $ENV{ROCM_PATH}/include /opt/rocm/include)
find_library(VITAMIN_HIP_LIBRARY amdhip64 HINTS $ENV{ROCM_PATH}/lib /opt/rocm/lib)
find_program(VITAMIN_HIPCC hipcc HINTS $ENV{ROCM_PATH}/bin /opt/rocm/bin)
find_file(VITAMIN_DEVICE_LIBRARY ockl.bc
          PATHS /usr/lib/x86_64-linux-gnu/amdgcn/bitcode $ENV{ROCM_PATH}/amdgcn/bitcode
                /opt/rocm/amdgcn/bitcode NO_DEFAULT_PATH)
find_path(VITAMIN_HSA_INCLUDE_DIR hsa/amd_hsa_queue.h
          HINTS $ENV{ROCM_PATH}/include /opt/rocm/include)
find_path(VITAMIN_LLVM15_INCLUDE_DIR llvm-c/Disassembler.h
          PATHS /usr/lib/llvm-15/include NO_DEFAULT_PATH)
find_library(VITAMIN_LLVM15_LIBRARY NAMES LLVM-15 PATHS /usr/lib/llvm-15/lib NO_DEFAULT_PATH)

_vitamin_amd_needs(VITAMIN_HIP_INCLUDE_DIR "hip/hip_runtime_api.h (Debian: libamdhip64-dev)")
_vitamin_amd_needs(VITAMIN_HIP_LIBRARY "libamdhip64 (libamdhip64-dev)")
_vitamin_amd_needs(VITAMIN_HIPCC "hipcc (hipcc)")
_vitamin_amd_needs(VITAMIN_DEVICE_LIBRARY "ockl.bc (rocm-device-libs)")
_vitamin_amd_needs(VITAMIN_HSA_INCLUDE_DIR "hsa/amd_hsa_queue.h (libhsa-runtime-dev)")
_vitamin_amd_needs(VITAMIN_LLVM15_INCLUDE_DIR "llvm-c/Disassembler.h of LLVM 15 (llvm-15-dev)")
_vitamin_amd_needs(VITAMIN_LLVM15_LIBRARY "libLLVM-15 (llvm-15-dev)")

set(VITAMIN_HAVE_HIP FALSE)
if(VITAMIN_HIP_INCLUDE_DIR AND VITAMIN_HSA_INCLUDE_DIR)
  set(VITAMIN_HAVE_HIP TRUE)
endif()

# The software GPU stands below the real runtime in programs that hipcc built. None of them is built
# with sanitizers, the fill kernels of the runtime are compiled by a second LLVM in the process, and
# the interpreter's speed is a figure that is tested: a sanitised build leaves all of it out and
# keeps what is pure (mask order, mask plan).
set(VITAMIN_HAVE_SOFT_AMDGPU FALSE)
if(VITAMIN_SOFT_AMDGPU AND NOT VITAMIN_AMD_MISSING AND NOT VITAMIN_SANITIZE
   AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(VITAMIN_HAVE_SOFT_AMDGPU TRUE)
endif()

if(VITAMIN_REQUIRE_AMD AND VITAMIN_AMD_MISSING)
  list(JOIN VITAMIN_AMD_MISSING ", " _missing)
  message(FATAL_ERROR "VITAMIN_REQUIRE_AMD is on and these were not found: ${_missing}.")
endif()

if(VITAMIN_HAVE_HIP AND NOT TARGET vitamin_hip_headers)
  add_library(vitamin_hip_headers INTERFACE)
  target_include_directories(vitamin_hip_headers SYSTEM INTERFACE
                             ${VITAMIN_HIP_INCLUDE_DIR} ${VITAMIN_HSA_INCLUDE_DIR})
  target_compile_definitions(vitamin_hip_headers INTERFACE __HIP_PLATFORM_AMD__)
endif()
