# What every target of the project shares: warnings, sanitizers, and the three kinds of target.
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
    # Its check of function pointers' types does not compile with coroutines: "difference across sections".
    target_compile_options(cairn_flags INTERFACE -fno-sanitize=function)
  endif()
  if(CAIRN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(cairn_flags INTERFACE -Wno-tsan)
  endif()
endif()

# cairn_layer(NAME SOURCES ... PUBLIC ... PRIVATE ...): one layer of the library.
function(cairn_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  target_link_libraries(${name} PUBLIC cairn_headers ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:cairn_flags> ${ARG_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY CAIRN_LAYERS ${name})
endfunction()

# cairn_test(NAME SOURCES ... LIBRARIES ...): one GoogleTest binary; CTest sees each of its tests.
function(cairn_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE cairn_flags ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  include(GoogleTest)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
