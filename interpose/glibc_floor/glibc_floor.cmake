# SPDX-License-Identifier: Apache-2.0
#
# vitamin_glibc_floor(<target>): a library that any glibc >= VITAMIN_GLIBC_FLOOR loads, whichever
# one built it. A preloaded library that the loader cannot satisfy ends the program; containers
# bring their own glibc.
#
# Three things make it so, on x86-64 and arm64: functions that moved between glibc's libraries are
# linked from where they were (moved_symbols.cpp), what is newer is brought along
# (newer_symbols.cpp), and nothing else newer is used, which tests/operations checks. libdl.so.2 and
# libpthread.so.0 become needed: in glibc >= 2.34 they are empty.
#
# vitamin_glibc_floor_of_programs(<target>): a program that glibc >= VITAMIN_GLIBC_FLOOR_OF_PROGRAMS
# starts, as RHEL 9 has it: all that is newer is what the unwinder asks.
set(VITAMIN_GLIBC_FLOOR_PROCESSORS x86_64 aarch64)
set(VITAMIN_GLIBC_FLOOR 2.28)
set(VITAMIN_GLIBC_FLOOR_OF_PROGRAMS 2.34)

function(_vitamin_floor_stub name version)
  if(TARGET vitamin_floor_${name})
    return()
  endif()
  string(TOUPPER ${name} upper)
  set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}.map)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
    set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/arm64.map)
  endif()
  add_library(vitamin_floor_${name} SHARED ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/moved_symbols.cpp)
  target_compile_definitions(vitamin_floor_${name} PRIVATE VITAMIN_FLOOR_${upper})
  # Programs of the build must never find these: a directory of their own, and no search path to it.
  set_target_properties(vitamin_floor_${name} PROPERTIES
    OUTPUT_NAME ${name} PREFIX "" SUFFIX .so VERSION ${version} SOVERSION ${version}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/glibc_floor LINK_DEPENDS ${map})
  target_link_options(vitamin_floor_${name} PRIVATE -nostdlib LINKER:--version-script=${map})
endfunction()

function(vitamin_glibc_floor target)
  if(VITAMIN_SANITIZE OR NOT CMAKE_SYSTEM_PROCESSOR IN_LIST VITAMIN_GLIBC_FLOOR_PROCESSORS)
    return()
  endif()
  _vitamin_floor_stub(libdl 2)
  _vitamin_floor_stub(libpthread 0)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/newer_symbols.cpp
                                   ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/find_object.cpp)
  set_source_files_properties(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/newer_symbols.cpp PROPERTIES
                              COMPILE_OPTIONS "-Wno-redundant-decls;-Wno-nonnull-compare")
  # Before libc, so that the linker looks here first.
  target_link_options(${target} PRIVATE
    LINKER:--no-as-needed $<TARGET_FILE:vitamin_floor_libpthread>
    $<TARGET_FILE:vitamin_floor_libdl>)
  add_dependencies(${target} vitamin_floor_libdl vitamin_floor_libpthread)
endfunction()

function(vitamin_glibc_floor_of_programs target)
  if(NOT VITAMIN_SANITIZE AND CMAKE_SYSTEM_PROCESSOR IN_LIST VITAMIN_GLIBC_FLOOR_PROCESSORS)
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/find_object.cpp)
  endif()
endfunction()
