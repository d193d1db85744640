# What every target of the project shares: warnings, sanitizers, precompiled headers, and the three kinds of target.
add_library(cairn_flags INTERFACE)
target_compile_options(cairn_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(cairn_flags INTERFACE -Wthread-safety)
endif()
if(CAIRN_SANITIZE)
  target_compile_options(cairn_flags INTERFACE -fsanitize=${CAIRN_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(cairn_flags INTERFACE -fsanitize=${CAIRN_SANITIZE})
  if(CAIRN_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # The check of function pointer types does not compile with coroutines: "difference across sections".
    target_compile_options(cairn_flags INTERFACE -fno-sanitize=function)
  endif()
  if(CAIRN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(cairn_flags INTERFACE -Wno-tsan)
  endif()
endif()

# cairn_unity(TARGET): several of its files are compiled as one, which takes half of the time. pip and the scripts enable it
# (CAIRN_UNITY), but not scripts/build: who changes one file compiles that one alone, and clang-tidy proves that each includes
# what it needs.
# Names in anonymous namespaces must differ within a batch. A layer is one batch, which takes a seventh less, and is the same
# for pip and for the tests: a name that pip's build would find twice, they find too.
function(cairn_unity target)
  if(CAIRN_UNITY)
    set(batch 8)
    get_property(layers GLOBAL PROPERTY CAIRN_LAYERS)
    if(target IN_LIST layers)
      set(batch 0)  # All.
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # It takes the files for headers.
    endif()
  endif()
endfunction()

# cairn_precompile(TARGET OWNER [HEADER...]): TARGET parses these headers once for all that have the same OWNER. Only
# the presets and scripts/build-python enable it (CAIRN_PRECOMPILE), but for clang, which clang-tidy reads (and asan for
# the library): clang-tidy sees each file alone, which proves that it includes what it needs.
function(cairn_precompile target owner)
  if(NOT CAIRN_PRECOMPILE OR (owner STREQUAL cairn_base AND CMAKE_CXX_COMPILER_ID STREQUAL Clang))
    return()
  elseif(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # For ccache.
  endif()
endfunction()

set(cairn_common_headers <algorithm> <array> <chrono> <cstdint> <functional> <map> <memory> <optional> <span> <string>
  <string_view> <utility> <vector>)

# cairn_layer(NAME SOURCES ... PUBLIC ... PRIVATE ...): one layer of the library.
function(cairn_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  target_link_libraries(${name} PUBLIC cairn_headers ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:cairn_flags> ${ARG_PRIVATE})
  cairn_precompile(${name} cairn_base ${cairn_common_headers} <fmt/format.h>)
  set_property(GLOBAL APPEND PROPERTY CAIRN_LAYERS ${name})
  cairn_unity(${name})
endfunction()

# cairn_test(NAME [OPTIMISED | BENCH] SOURCES ... LIBRARIES ... [HOT ...] [ALONE ...]): one GoogleTest binary, whose tests
# CTest runs one by one. Only its HOT sources and the libraries that it links are optimised: optimising tests took half of
# the build's time. ALONE sources share names with others, and are no part of a batch (cairn_unity). CI runs each test in
# one build: under sanitizers, or, if it takes long or starts other programs, OPTIMISED. BENCH tests are the workbench's.
function(cairn_test name)
  cmake_parse_arguments(ARG "OPTIMISED;BENCH" "TIMEOUT" "SOURCES;LIBRARIES;HOT;ALONE" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES} ${ARG_HOT} ${ARG_ALONE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(${name} PRIVATE -O0 -g1)
  target_link_libraries(${name} PRIVATE cairn_flags ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(NOT "cairn_trainer_models" IN_LIST ARG_LIBRARIES)  # Torch's macros differ.
    cairn_precompile(${name} cairn_test_headers)
  endif()
  cairn_unity(${name})
  set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_source_files_properties(${ARG_HOT} PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
  if(ARG_OPTIMISED)
    cairn_selected(optimised selected)
  elseif(ARG_BENCH)
    cairn_selected(bench selected)
  else()
    cairn_selected(sanitized selected)
  endif()
  if(selected)
    include(GoogleTest)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  else()
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# Whether CAIRN_TESTS selects tests of this kind.
function(cairn_selected kind variable)
  set(selected OFF)
  if(CAIRN_TESTS STREQUAL all OR CAIRN_TESTS STREQUAL kind)
    set(selected ON)
  endif()
  set(${variable} ${selected} PARENT_SCOPE)
endfunction()
