# SPDX-License-Identifier: Apache-2.0
#
# vitamin_kernels(<target> SOURCE <file> OUTPUT_DIRECTORY <directory> [NAME <stem>])
#
# Compiles one source of portable kernels (backends/soft/kernel.h) into <stem>.so for the software
# driver and, where nvcc was found, into <stem>.fatbin for GPUs (code for sm_90, PTX for the rest).
function(vitamin_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE;OUTPUT_DIRECTORY;NAME" "")
  if(NOT arg_NAME)
    set(arg_NAME ${target})
  endif()
  get_filename_component(source ${arg_SOURCE} ABSOLUTE)
  add_library(${target} MODULE ${source})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${arg_NAME} SUFFIX .so LIBRARY_OUTPUT_DIRECTORY ${arg_OUTPUT_DIRECTORY})
  if(VITAMIN_NVCC)
    set(fatbin ${arg_OUTPUT_DIRECTORY}/${arg_NAME}.fatbin)
    add_custom_command(
      OUTPUT ${fatbin}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${arg_OUTPUT_DIRECTORY}
      COMMAND ${VITAMIN_NVCC} -fatbin -std=c++20 -O3 -x cu -I ${PROJECT_SOURCE_DIR}
              -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90,code=sm_90
              -MD -MF ${CMAKE_CURRENT_BINARY_DIR}/${target}.d -MT ${fatbin}
              -o ${fatbin} ${source}
      DEPENDS ${source}
      DEPFILE ${CMAKE_CURRENT_BINARY_DIR}/${target}.d
      COMMENT "Building ${arg_NAME}.fatbin" VERBATIM)
    add_custom_target(${target}_fatbin ALL DEPENDS ${fatbin})
    add_dependencies(${target} ${target}_fatbin)
  endif()
endfunction()
