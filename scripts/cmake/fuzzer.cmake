# SPDX-License-Identifier: Apache-2.0
#
# vitamin_fuzzer(<target> COMPONENT <label> SOURCES <files> CORPUS <directory>
#                MAX_LENGTH <bytes> RUNS <n> SECONDS <n> NIGHTLY <executions>
#                [INCLUDES <directories>] [DICTIONARY <file>] [UNTRACED <files>])
#
# A libFuzzer program with AddressSanitizer and UndefinedBehaviorSanitizer, for which it needs
# clang; the rest of the build need not be clang's. What it starts from is the corpus, a directory
# of the repository; what it finds beside that stays in the build directory. UNTRACED: files among
# the sources whose branches are many and say nothing of the input.
#
#   ctest "<target>: no input breaks it"   the corpus, then new inputs: RUNS in all, of one seed; in
#                                          the long form SECONDS of them, of a fresh seed
#   ninja <target>                         the program, build/.../tests/<target>; with a file as its
#                                          argument it runs that input alone: one that broke it
#                                          is build/.../fuzzed/<target>-crash-... (-timeout-, -oom-)
#   ninja <target>-nightly                 NIGHTLY executions on all processors
#
# It is carried to other machines too (bench/daemon/fuzz.py), with its C++ library in it.

# A clang that comes without libFuzzer's archive (Debian: libclang-common-15-dev) is none.
function(_vitamin_find_fuzzing_clang)
  if(DEFINED VITAMIN_FUZZING_CLANG)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/CMakeFiles/fuzzer_probe.cpp)
  file(WRITE ${source} "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, "
                       "unsigned long) { return 0; }\n")
  set(found "")
  foreach(name clang++-15 clang++-14 clang++)
    find_program(_clang_${name} ${name})
    mark_as_advanced(_clang_${name})
    if(_clang_${name} AND NOT found)
      execute_process(COMMAND ${_clang_${name}} -fsanitize=fuzzer,address,undefined ${source}
                              -o ${CMAKE_BINARY_DIR}/CMakeFiles/fuzzer_probe
                      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
      if(NOT failed)
        set(found ${_clang_${name}})
      endif()
    endif()
  endforeach()
  set(VITAMIN_FUZZING_CLANG "${found}" CACHE FILEPATH "clang++ with libFuzzer, or empty")
endfunction()

function(vitamin_fuzzer target)
  cmake_parse_arguments(PARSE_ARGV 1 arg ""
                        "COMPONENT;CORPUS;DICTIONARY;MAX_LENGTH;RUNS;SECONDS;NIGHTLY"
                        "SOURCES;INCLUDES;UNTRACED")
  _vitamin_find_fuzzing_clang()
  if(NOT VITAMIN_FUZZING_CLANG)
    message(STATUS "no clang with libFuzzer (Debian: clang-15): ${target} is not built")
    return()
  endif()
  if(VITAMIN_SANITIZE)  # it brings its own
    return()
  endif()
  set(flags -std=c++20 -O2 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
      -I${PROJECT_SOURCE_DIR})
  list(REMOVE_ITEM arg_INCLUDES /usr/include)  # it is looked at in any case, in its own place
  foreach(directory IN LISTS arg_INCLUDES)
    list(APPEND flags -isystem ${directory})
  endforeach()
  set(untraced "")
  foreach(source IN LISTS arg_UNTRACED)
    string(REPLACE "/" "_" name ${source})
    list(APPEND untraced ${name})
  endforeach()
  set(objects "")
  foreach(source IN LISTS arg_SOURCES)
    get_filename_component(source ${source} ABSOLUTE)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
    string(REPLACE "/" "_" name ${name})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${target}.dir/${name}.o)
    set(traced -fsanitize=fuzzer)
    if(name IN_LIST untraced)
      set(traced "")
    endif()
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${VITAMIN_FUZZING_CLANG} ${flags} ${traced} -MD
              -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${target}.dir)
  set(program ${CMAKE_BINARY_DIR}/tests/${target})
  add_custom_command(OUTPUT ${program}
                     COMMAND ${VITAMIN_FUZZING_CLANG} ${flags} -fsanitize=fuzzer ${objects} -ldl
                             -lpthread -static-libstdc++ -static-libgcc -o ${program}
                     DEPENDS ${objects} VERBATIM)
  add_custom_target(${target} ALL DEPENDS ${program})
  vitamin_labels(labels ${arg_COMPONENT})
  _vitamin_component_target(${arg_COMPONENT} "${labels}" ${target})
  install(PROGRAMS ${program} DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/vitamin/bench
          COMPONENT bench EXCLUDE_FROM_ALL)

  set(found ${CMAKE_BINARY_DIR}/fuzzed/${target})
  file(MAKE_DIRECTORY ${found})
  # Without the weights of its inputs, which cost it more than ours do: three times as many.
  set(run ${program} -max_len=${arg_MAX_LENGTH} -entropic=0 -timeout=60 -print_final_stats=1
      -artifact_prefix=${found}-)
  if(arg_DICTIONARY)
    get_filename_component(dictionary ${arg_DICTIONARY} ABSOLUTE)
    list(APPEND run -dict=${dictionary})
  endif()
  get_filename_component(corpus ${arg_CORPUS} ABSOLUTE)
  add_test(NAME "${target}: no input breaks it"
           COMMAND sh ${PROJECT_SOURCE_DIR}/scripts/cmake/fuzz.sh ${arg_RUNS} ${arg_SECONDS}
                   ${found} ${corpus} ${run})
  # COST: begun early, so that nothing is left waiting for it at the end.
  set_tests_properties("${target}: no input breaks it" PROPERTIES LABELS "${labels}" COST 1000)
  include(ProcessorCount)
  ProcessorCount(processors)
  if(processors EQUAL 0)
    set(processors 1)
  endif()
  math(EXPR each "(${arg_NIGHTLY} + ${processors} - 1) / ${processors}")
  add_custom_target(${target}-nightly
                    COMMAND ${run} -runs=${each} -jobs=${processors} -workers=${processors}
                            ${found} ${corpus}
                    WORKING_DIRECTORY ${found} DEPENDS ${program} USES_TERMINAL VERBATIM)
endfunction()
