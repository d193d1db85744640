# Installs the build tree, moves the installed tree, builds and runs examples/ against it, and compiles the
# documentation's C++. With TORCH, the folder of torch's Python package, also builds and runs the example with libtorch.
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
foreach(page README.md docs/cpp.md docs/planning.md)
  file(READ ${SOURCE}/${page} text)
  set(found FALSE)
  string(FIND "${text}" "```cpp\n" at)
  while(NOT at EQUAL -1)
    math(EXPR at "${at} + 7")
    string(SUBSTRING "${text}" ${at} -1 text)
    string(FIND "${text}" "```" end)
    string(SUBSTRING "${text}" 0 ${end} block)
    if(block MATCHES "MakeTorchGroup")
      file(WRITE ${SCRATCH}/example.inc "#line 1 \"${page}\"\n${block}")
    else()
      file(WRITE ${SCRATCH}/block.cc "${begin}#line 1 \"${page}\"\n${block}}\n")
      run(${COMPILER} -std=c++20 -Wall -Wextra -Werror -Wno-unused-variable -fsyntax-only -I${SCRATCH}/prefix/include
        ${SCRATCH}/block.cc)
    endif()
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

# Two ranks save; then two others, with other weights, restore what those saved.
if(TORCH)
  run(${CMAKE_COMMAND} -S ${SOURCE}/tests/consumer/torch -B ${SCRATCH}/with_torch -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DTORCH=${TORCH} -DTORCH_ABI=${TORCH_ABI}
    -DBLOCK=${SCRATCH})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/with_torch)
  foreach(step 1 2)
    set(program ${SCRATCH}/with_torch/with_torch ${SCRATCH}/torch_root ${SCRATCH}/store-${step})
    execute_process(COMMAND ${program} 0 2 ${step} ${step} COMMAND ${program} 1 2 ${step} ${step}
      RESULTS_VARIABLE status ERROR_VARIABLE said)
    if(NOT status STREQUAL "0;0")
      message(FATAL_ERROR "with_torch exited with ${status}: ${said}")
    endif()
    message(STATUS "${said}")
    string(REGEX MATCH "restored 1 [0-9a-f]+" restored "${said}")
    string(REGEX MATCH "saved ${step} ([0-9a-f]+)" saved "${said}")
    if(step EQUAL 2 AND NOT restored STREQUAL "restored 1 ${before}")
      message(FATAL_ERROR "expected what was saved, ${before}, found ${said}")
    endif()
    set(before ${CMAKE_MATCH_1})
  endforeach()
endif()
file(REMOVE_RECURSE ${SCRATCH})
