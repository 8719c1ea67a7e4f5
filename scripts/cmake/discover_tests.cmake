# SPDX-License-Identifier: Apache-2.0
#
# Run after a test program was linked: writes one add_test for each of its doctest cases.
# In: EXECUTABLE TARGET LABELS TIMEOUT SERIAL ENVIRONMENT ARGUMENTS OUTPUT.

# Listing must not depend on the test's own environment, and leak checks mean nothing here.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 ${EXECUTABLE} --list-test-cases
          --no-colors=true
  OUTPUT_VARIABLE listing RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
  file(REMOVE ${OUTPUT})
  message(FATAL_ERROR "${EXECUTABLE} --list-test-cases failed (${result}): ${listing}${errors}")
endif()

set(script "")
string(REPLACE ";" "\\;" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
foreach(line IN LISTS lines)
  if(line STREQUAL "" OR line MATCHES "^\\[doctest\\]" OR line MATCHES "^====")
    continue()
  endif()
  # A comma separates filters in doctest.
  string(REPLACE "," "\\," filter "${line}")
  set(name "${TARGET}: ${line}")
  string(APPEND script "add_test([==[${name}]==] [==[${EXECUTABLE}]==] "
                       "[==[--test-case=${filter}]==]")
  foreach(argument IN LISTS ARGUMENTS)
    string(APPEND script " [==[${argument}]==]")
  endforeach()
  string(APPEND script ")\nset_tests_properties([==[${name}]==] PROPERTIES "
                       "LABELS [==[${LABELS}]==]")
  if(TIMEOUT GREATER 600)
    string(APPEND script " TIMEOUT ${TIMEOUT}")
  endif()
  if(SERIAL)
    string(APPEND script " RUN_SERIAL TRUE")
  endif()
  if(ENVIRONMENT)
    string(APPEND script " ENVIRONMENT [==[${ENVIRONMENT}]==]")
  endif()
  string(APPEND script ")\n")
endforeach()
if(script STREQUAL "")
  message(FATAL_ERROR "${EXECUTABLE} has no test case.")
endif()
file(WRITE ${OUTPUT} "${script}")
