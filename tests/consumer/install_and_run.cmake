# Installs the build tree, moves the installed tree, builds and runs examples/ against it, and compiles the
# documentation's C++.
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE status)
  if(status)
    message(FATAL_ERROR "exited with ${status}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILT} --prefix ${SCRATCH}/first)
file(RENAME ${SCRATCH}/first ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE}/examples -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/save_and_restore ${SCRATCH}/root)

# Each block of C++ is the body of a function, whose own declarations hide these.
set(begin "#include <cairn/cairn.h>
using namespace cairn::literals;
using namespace std::chrono_literals;
template <typename T>
T Check(cairn::Result<T> result);
void Check(const cairn::Status& status);
void ForwardAndBackward(std::uintptr_t stream);
void OptimizerStep(std::uintptr_t stream);
extern const char* root;
extern void* weight;
extern cairn::DeviceId gpu;
extern std::uintptr_t stream;
extern std::uint64_t step, steps;
extern cairn::Checkpointer* checkpointer;
extern cairn::State state;
void Run() {
")
foreach(page README.md docs/cpp.md docs/operations.md)
  file(READ ${SOURCE}/${page} text)
  set(found FALSE)
  string(FIND "${text}" "```cpp\n" at)
  while(NOT at EQUAL -1)
    math(EXPR at "${at} + 7")
    string(SUBSTRING "${text}" ${at} -1 text)
    string(FIND "${text}" "```" end)
    string(SUBSTRING "${text}" 0 ${end} block)
    file(WRITE ${SCRATCH}/block.cc "${begin}#line 1 \"${page}\"\n${block}}\n")
    run(${COMPILER} -std=c++20 -Wall -Wextra -Werror -Wno-unused-variable -fsyntax-only -I${SCRATCH}/prefix/include
      ${SCRATCH}/block.cc)
    set(found TRUE)
    string(FIND "${text}" "```cpp\n" at)
  endwhile()
  if(NOT found)
    message(FATAL_ERROR "${page}: no block of C++")
  endif()
endforeach()

# docs/cpp.md's CMake is the example's, but for the name of the program.
file(READ ${SOURCE}/docs/cpp.md text)
string(REGEX MATCH "```cmake\n([^`]*)```" block "${text}")
string(REPLACE "trainer" "save_and_restore" lines "${CMAKE_MATCH_1}")
file(READ ${SOURCE}/examples/CMakeLists.txt text)
string(REPLACE "cairn 0.1 REQUIRED" "cairn REQUIRED" text "${text}")
string(REGEX REPLACE "add_executable[^\n]*\n" "" text "${text}")
string(FIND "${text}" "${lines}" at)
if(lines STREQUAL "" OR at EQUAL -1)
  message(FATAL_ERROR "docs/cpp.md: expected the lines of examples/CMakeLists.txt, found ${lines}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
