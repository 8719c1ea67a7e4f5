# SPDX-License-Identifier: Apache-2.0
#
# Which tests run in which build. `scripts/test` runs the short form of each, `scripts/test --long`
# the long form.
#
#   without sanitizers      both forms are everything
#   address,undefined       short: the components of code that handles memory
#   thread                  short: the components of code that has threads
#
# A test that is not in the short form of its build has the label "long" beside its component's, and
# `tests-short` builds nothing for it. Within a component of the table vitamin_test and
# vitamin_python_tests mark what a sanitizer shows nothing new with: PLAIN_ONLY (any of them) and
# ONE_THREAD (ThreadSanitizer). The long form has these tests.
#
# Builds with sanitizers do not have, in any form, the tests with one of these marks:
#
#   MEASURES      instructions or rates, which a sanitizer changes
#   SOURCE_TREE   the sources, scripts and pages, which are the same bytes in each build
set(VITAMIN_NOT_WITH_SANITIZERS MEASURES SOURCE_TREE)

set(VITAMIN_SHORT_FORM_ASAN cli config cuda daemon differential hal hip interpose libcuda metrics
    protocol runtime scheduler soft trace)
set(VITAMIN_SHORT_FORM_TSAN daemon hal interpose libcuda metrics protocol runtime soft trace)

# What the environment of every test holds in a build with sanitizers. When a thread first uses a
# dynamic block of thread-local storage, libsanitizer guesses from the block's address that glibc
# 2.19's header lies before it, and LeakSanitizer then reads where that "header" points ("Tracer
# caught signal 11"; a program of ten lines shows it). Without the guess it finds these blocks as
# the allocations that they are.
set(VITAMIN_SANITIZER_ENVIRONMENT "")
if(VITAMIN_SANITIZE MATCHES "address")
  set(VITAMIN_SANITIZER_ENVIRONMENT "ASAN_OPTIONS=intercept_tls_get_addr=0")
endif()

# vitamin_labels(<result> <component> [PLAIN_ONLY] [ONE_THREAD]): the labels of a test.
function(vitamin_labels result component)
  set(labels ${component})
  if(VITAMIN_SANITIZE)
    set(short ${VITAMIN_SHORT_FORM_ASAN})
    set(left_out "^PLAIN_ONLY$")
    if(VITAMIN_SANITIZE MATCHES "thread")
      set(short ${VITAMIN_SHORT_FORM_TSAN})
      set(left_out "^(PLAIN_ONLY|ONE_THREAD)$")
    endif()
    list(FILTER ARGN INCLUDE REGEX "${left_out}")
    if(ARGN OR NOT component IN_LIST short)
      list(APPEND labels long)
    endif()
  endif()
  set(${result} "${labels}" PARENT_SCOPE)
endfunction()

# _vitamin_component_target(<component> <labels> [<targets>...]): `tests-<component>` builds what
# the tests of one component need, `tests-short` what those of the short form need.
function(_vitamin_component_target component labels)
  if(NOT TARGET tests-${component})
    add_custom_target(tests-${component})
  endif()
  if(NOT TARGET tests-short)
    add_custom_target(tests-short)
  endif()
  if(ARGN)
    add_dependencies(tests-${component} ${ARGN})
    if(NOT "long" IN_LIST labels)
      add_dependencies(tests-short ${ARGN})
    endif()
  endif()
endfunction()
