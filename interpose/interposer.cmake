# SPDX-License-Identifier: Apache-2.0
#
# vitamin_interposer(<target> VENDOR <directory of interpose/> TABLE <its .def file> SOURCES <files>
#                    BACKEND <target> INCLUDES <directories of the vendor's headers>)
#
# A library that `vitamin run` preloads: the shared sources of this directory, compiled in one
# vendor's words, and that vendor's own. It needs libc and the dynamic loader only, whatever the
# program brings along; that may be an older glibc than the one here
# (glibc_floor/glibc_floor.cmake).
include(${CMAKE_CURRENT_LIST_DIR}/glibc_floor/glibc_floor.cmake)

function(vitamin_interposer target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "VENDOR;TABLE;BACKEND;ADVICE" "SOURCES;INCLUDES")
  set(shared ${PROJECT_SOURCE_DIR}/interpose)
  set(vendor ${shared}/${arg_VENDOR})
  list(TRANSFORM arg_SOURCES PREPEND ${vendor}/)
  # loader.cpp comes first: of an inline function that was not inlined the linker keeps the first
  # definition, and the loader's must be the one without sanitizers (see below).
  add_library(${target} SHARED
    ${shared}/loader.cpp
    ${shared}/advice.cpp
    ${shared}/process_state.cpp
    ${shared}/context.cpp
    ${shared}/unknown_entry_points.cpp
    ${shared}/events.cpp
    ${shared}/exports.cpp
    ${shared}/graph_memory.cpp
    ${shared}/graphs.cpp
    ${shared}/launches.cpp
    ${shared}/memory.cpp
    ${shared}/nvtx.cpp
    ${shared}/quotas.cpp
    ${shared}/resident_list.cpp
    ${shared}/module_origins.cpp
    ${shared}/streams.cpp
    ${shared}/call_wrappers.cpp
    ${arg_SOURCES})
  target_compile_definitions(${target} PRIVATE
    VITAMIN_ADVICE_SYMBOL=vitamin_advice_${arg_ADVICE}
    VITAMIN_VENDOR_TRAITS="interpose/${arg_VENDOR}/vendor_traits.h"
    VITAMIN_VENDOR_HOOKS="interpose/${arg_VENDOR}/manual_overrides.h"
    VITAMIN_ENTRY_POINTS="interpose/${arg_VENDOR}/${arg_TABLE}")
  target_include_directories(${target} SYSTEM PRIVATE ${arg_INCLUDES})
  # Every entry point is overridden, those that the vendor would have programs give up as well.
  target_compile_options(${target} PRIVATE -Wno-deprecated-declarations)
  target_link_libraries(${target} PRIVATE ${arg_BACKEND} vitamin_client
                                          vitamin_runtime ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${vendor}/exports.map)
  target_link_options(${target} PRIVATE
    LINKER:--version-script=${vendor}/exports.map
    # Calls between our own functions must never be captured by another preloaded library.
    LINKER:-Bsymbolic LINKER:-z,now LINKER:--as-needed)
  vitamin_glibc_floor(${target})
  set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  if(VITAMIN_SANITIZE)
    # The vendors' enumerations are C's, where programs may pass any number.
    target_compile_options(${target} PRIVATE -fno-sanitize=enum)
  else()
    target_link_options(${target} PRIVATE -static-libgcc -static-libstdc++ LINKER:-z,defs)
  endif()
  # Runs while the loader works, before the runtime of a sanitizer is ready. Its own calls of the
  # real dlsym must be calls: as jumps they would be made in the name of the application.
  set_source_files_properties(${shared}/loader.cpp PROPERTIES
                              COMPILE_OPTIONS "-fno-sanitize=all;-fno-optimize-sibling-calls")
endfunction()
