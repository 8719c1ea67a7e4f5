# SPDX-License-Identifier: Apache-2.0
#
# find_package(Vitamin) gives
#
#   Vitamin::policy             the header of loadable policies (vitamin_policy.h); nothing to link
#   vitamin_add_policy(<target> <sources>...)
#                               a policy as `vitamin run --policy FILE` loads it: <target>.so
get_filename_component(_vitamin_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Vitamin::policy)
  add_library(Vitamin::policy INTERFACE IMPORTED)
  set_target_properties(Vitamin::policy PROPERTIES
                        INTERFACE_INCLUDE_DIRECTORIES "${_vitamin_prefix}/include")
endif()

function(vitamin_add_policy target)
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE Vitamin::policy)
  set_target_properties(${target} PROPERTIES PREFIX "")
endfunction()

unset(_vitamin_prefix)
