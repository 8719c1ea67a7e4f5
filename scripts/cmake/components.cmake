# SPDX-License-Identifier: Apache-2.0
#
# How directories and tests are added.
include(forms)

set_property(GLOBAL PROPERTY VITAMIN_NOT_BUILT "")

# vitamin_component(<directory> [NEEDS_CUDA_HEADERS] [NEEDS_HIP_HEADERS] [NEEDS_SOFT_AMDGPU])
function(vitamin_component directory)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NEEDS_CUDA_HEADERS;NEEDS_HIP_HEADERS;NEEDS_SOFT_AMDGPU"
                        "" "")
  set(lacks "")
  if(arg_NEEDS_CUDA_HEADERS AND NOT VITAMIN_HAVE_CUDA)
    set(lacks "the CUDA headers")
  elseif(arg_NEEDS_HIP_HEADERS AND NOT VITAMIN_HAVE_HIP)
    set(lacks "the HIP headers")
  elseif(arg_NEEDS_SOFT_AMDGPU AND NOT VITAMIN_HAVE_SOFT_AMDGPU)
    set(lacks "the software AMD GPU")
  endif()
  if(lacks)
    set_property(GLOBAL APPEND PROPERTY VITAMIN_NOT_BUILT "${directory} (needs ${lacks})")
    return()
  endif()
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${directory}/CMakeLists.txt)
    message(WARNING "${directory}/CMakeLists.txt is missing; the directory is not built.")
    return()
  endif()
  add_subdirectory(${PROJECT_SOURCE_DIR}/${directory})
endfunction()

# Which tests have which mark (scripts/cmake/forms.cmake).
set(_VITAMIN_MARKS PLAIN_ONLY ONE_THREAD ${VITAMIN_NOT_WITH_SANITIZERS})

# The marks that the caller was given, and whether this build has the test at all.
function(_vitamin_marks result has_test)
  set(marks "")
  set(${has_test} TRUE PARENT_SCOPE)
  foreach(mark IN LISTS _VITAMIN_MARKS)
    if(arg_${mark})
      list(APPEND marks ${mark})
      if(VITAMIN_SANITIZE AND mark IN_LIST VITAMIN_NOT_WITH_SANITIZERS)
        set(${has_test} FALSE PARENT_SCOPE)
      endif()
    endif()
  endforeach()
  set(${result} "${marks}" PARENT_SCOPE)
endfunction()

# vitamin_test(<target> COMPONENT <label> SOURCES <files>
#              [LIBRARIES <targets>] [DEPENDS <targets>] [ENVIRONMENT <NAME=value>...]
#              [ARGUMENTS <words>] [TIMEOUT <seconds>] [OWN_MAIN] [SERIAL]
#              [PLAIN_ONLY] [ONE_THREAD] [MEASURES])
#
# A doctest program. Each TEST_CASE becomes one ctest test named "<target>: <test case>", labelled
# with its component, so that a failure names the sentence that is false and a missing suite shows
# in the counts (tests/expected_counts.txt). SERIAL: never beside another test. PLAIN_ONLY,
# ONE_THREAD: not in the short form of a build with sanitizers, or with ThreadSanitizer; MEASURES:
# in no form of those (scripts/cmake/forms.cmake). A test that hangs is ended by `ctest --timeout`
# (scripts/test), for all tests the same and no verdict on speed; TIMEOUT sets another limit above
# 600 s. Where a test does not say otherwise VITAMIN_LOCK_DIRECTORY is empty: tests side by side are
# no neighbours on a GPU, and VITAMIN_LOCK_RULE is set (hal/lock_rule.h). It has no state directory.
function(vitamin_test target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OWN_MAIN;SERIAL;${_VITAMIN_MARKS}"
                        "COMPONENT;TIMEOUT"
                        "SOURCES;LIBRARIES;DEPENDS;ENVIRONMENT;ARGUMENTS")
  if(NOT arg_COMPONENT OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "vitamin_test(${target}): COMPONENT and SOURCES are needed; "
                        "not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  _vitamin_marks(marks has_test)
  if(NOT has_test)
    return()
  endif()
  vitamin_labels(labels ${arg_COMPONENT} ${marks})
  add_executable(${target} ${arg_SOURCES})
  vitamin_compile_quickly(${target})
  if(NOT arg_OWN_MAIN)
    target_link_libraries(${target} PRIVATE vitamin_doctest_main)
  endif()
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES} doctest::doctest Threads::Threads)
  set_target_properties(${target} PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(arg_DEPENDS)
    add_dependencies(${target} ${arg_DEPENDS})
  endif()

  _vitamin_component_target(${arg_COMPONENT} "${labels}" ${target})

  set(environment ${VITAMIN_SANITIZER_ENVIRONMENT} "VITAMIN_LOCK_DIRECTORY="
      "VITAMIN_LOCK_RULE=1" "XDG_STATE_HOME=/dev/null" ${arg_ENVIRONMENT})
  set(include_file ${CMAKE_CURRENT_BINARY_DIR}/${target}_tests.cmake)
  add_custom_command(
    TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND}
            -D "EXECUTABLE=$<TARGET_FILE:${target}>" -D "TARGET=${target}"
            -D "LABELS=${labels}" -D "TIMEOUT=${arg_TIMEOUT}" -D "SERIAL=${arg_SERIAL}"
            -D "ENVIRONMENT=${environment}" -D "ARGUMENTS=${arg_ARGUMENTS}"
            -D "OUTPUT=${include_file}"
            -P ${PROJECT_SOURCE_DIR}/scripts/cmake/discover_tests.cmake
    BYPRODUCTS ${include_file}
    VERBATIM)
  # A program that was not built is a failing test, not a missing one.
  set(guard_file ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
  file(WRITE ${guard_file}
       "if(EXISTS \"${include_file}\")\n"
       "  include(\"${include_file}\")\n"
       "else()\n"
       "  add_test(\"${target}: was built\" ${target}_was_not_built)\n"
       "  set_tests_properties(\"${target}: was built\" PROPERTIES LABELS \"${labels}\")\n"
       "endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${guard_file})
endfunction()

# vitamin_python_tests(COMPONENT <label> FILE <file> [NAME <instead of the file's>]
#                      [CLASSES <only these>...] [DEPENDS <targets>]
#                      [ENVIRONMENT <NAME=value>...] [TIMEOUT <seconds>] [PLAIN_ONLY]
#                      [ONE_THREAD] [MEASURES] [SOURCE_TREE])
#
# A file of unittest classes. Each method is one ctest test, with a state directory of its own
# (tests/own_state.py); what is built for them is built with the component. They find the modules
# of tests/ itself, and in FIRST what must be preloaded ahead of a library of this build: the
# runtime of its sanitizer, or nothing.
function(vitamin_python_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "${_VITAMIN_MARKS}"
                        "COMPONENT;FILE;NAME;TIMEOUT" "DEPENDS;ENVIRONMENT;CLASSES")
  _vitamin_marks(marks has_test)
  if(NOT has_test)
    return()
  endif()
  vitamin_labels(labels ${arg_COMPONENT} ${marks})
  get_filename_component(file ${arg_FILE} ABSOLUTE)
  get_filename_component(stem ${arg_FILE} NAME_WE)
  if(arg_NAME)
    set(stem ${arg_NAME})
  endif()
  set(environment ${VITAMIN_SANITIZER_ENVIRONMENT} "VITAMIN_LOCK_DIRECTORY="
      "VITAMIN_LOCK_RULE=1" "VITAMIN_TEST_SANITIZERS=${VITAMIN_SANITIZE}"
      "FIRST=${VITAMIN_SANITIZER_RUNTIME}"
      "PYTHONPATH=${PROJECT_SOURCE_DIR}/tests"
      "PYTHONPYCACHEPREFIX=${PROJECT_BINARY_DIR}/python/bytecode" "PYTHONDONTWRITEBYTECODE=")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  _vitamin_component_target(${arg_COMPONENT} "${labels}" ${arg_DEPENDS})
  file(STRINGS ${file} lines REGEX "^class [A-Za-z]+|^    def test_[a-z0-9_]+")
  foreach(line IN LISTS lines)
    if(line MATCHES "^class ([A-Za-z]+)")
      set(class ${CMAKE_MATCH_1})
    elseif(arg_CLASSES AND NOT class IN_LIST arg_CLASSES)
      continue()
    elseif(line MATCHES "def (test_([a-z0-9_]+))")
      string(REPLACE "_" " " words "${CMAKE_MATCH_2}")
      set(name "${stem}: ${words}")
      add_test(NAME "${name}"
               COMMAND ${VITAMIN_TEST_PYTHON} ${PROJECT_SOURCE_DIR}/tests/own_state.py
                       ${file} ${class}.${CMAKE_MATCH_1})
      set_tests_properties("${name}" PROPERTIES LABELS "${labels}"
                           ENVIRONMENT "${environment};${arg_ENVIRONMENT}"
                           ENVIRONMENT_MODIFICATION
                           "PATH=path_list_prepend:${PROJECT_BINARY_DIR}/python/bin"
                           SKIP_REGULAR_EXPRESSION "skipped=1")
      if(arg_TIMEOUT GREATER 600)
        set_tests_properties("${name}" PROPERTIES TIMEOUT ${arg_TIMEOUT})
      endif()
    endif()
  endforeach()
endfunction()

# vitamin_portable_program(<target>): carried to machines that have another C++ library or an older
# glibc (glibc_floor.cmake). It has its libraries in it, or loads them by path: it needs no search
# path. What it does not use of them is dropped, since std::random_device needs a newer glibc.
include(${CMAKE_CURRENT_LIST_DIR}/../../interpose/glibc_floor/glibc_floor.cmake)
function(vitamin_portable_program target)
  set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  if(NOT VITAMIN_SANITIZE)
    # mold 1.10 keeps imports of sections that it drops.
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -fuse-ld=bfd
                        LINKER:--gc-sections)
    vitamin_glibc_floor_of_programs(${target})
  endif()
endfunction()

# What was built and what was not, in words, at the end of the configure step.
function(vitamin_summary)
  get_property(not_built GLOBAL PROPERTY VITAMIN_NOT_BUILT)
  message(STATUS "----------------------------------------------------------------")
  message(STATUS "vitamin ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
                 "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  if(VITAMIN_SANITIZE)
    message(STATUS "  sanitizers    ${VITAMIN_SANITIZE}")
  endif()
  if(VITAMIN_HAVE_CUDA)
    message(STATUS "  CUDA headers  ${VITAMIN_CUDA_VERSION} in ${VITAMIN_CUDA_INCLUDE_DIR}")
    if(VITAMIN_NVCC)
      message(STATUS "  nvcc          ${VITAMIN_NVCC}")
    elseif(VITAMIN_SANITIZE)
      message(STATUS "  nvcc          not used with sanitizers")
    else()
      message(STATUS "  nvcc          not found: GPU binaries of the demo and the test kernels "
                     "are not built")
    endif()
  else()
    message(STATUS "  CUDA headers  none (>= 12.4) found: looked at CUDA_HOME, CUDA_PATH, nvcc on "
                   "PATH, /usr/local/cuda*, /opt/cuda")
  endif()
  if(NOT VITAMIN_AMD_MISSING)
    message(STATUS "  HIP           ${VITAMIN_HIPCC}")
    if(VITAMIN_SANITIZE)
      message(STATUS "  AMD GPU       the software one is not built with sanitizers")
    endif()
  else()
    list(JOIN VITAMIN_AMD_MISSING ", " missing)
    message(STATUS "  HIP           incomplete, not found: ${missing}")
  endif()
  foreach(directory IN LISTS not_built)
    message(STATUS "  NOT BUILT     ${directory}")
  endforeach()
  message(STATUS "----------------------------------------------------------------")
endfunction()

# What the build of portable kernels by another compiler depends on.
set(portable_kernel_headers ${PROJECT_SOURCE_DIR}/backends/soft/kernel.h
                            ${PROJECT_SOURCE_DIR}/backends/soft/short_floats.h)
