# Installs the build tree, moves the installed tree, builds and runs examples/ against it, and compiles the
# documentation's C++. With PYTHON, which has torch, also builds and runs the example with libtorch.
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

# Each block of C++ is the body of a function, whose own declarations hide these. So are designated initialisers that
# leave fields out: they must not warn.
set(blocks "#include <cairn/cairn.h>
using namespace cairn::literals;
using namespace std::chrono_literals;
template <typename T>
T Check(cairn::Result<T> result);
void Check(const cairn::Status& status);
void ForwardAndBackward(std::uintptr_t stream);
void OptimizerStep(std::uintptr_t stream);
void Train(std::uint64_t step);
extern const std::string root, job;
extern int rank, size;
extern void* weight;
extern cairn::DeviceId gpu;
extern std::uintptr_t stream;
extern std::uint64_t step, steps;
extern cairn::Checkpointer* checkpointer;
extern cairn::State state;
void Initialise(const cairn::Options&, const cairn::SteeringOptions&, const cairn::SaveOptions&, const cairn::Replicated&,
                const cairn::RestoreOptions&, const cairn::StoreGroupOptions&, const cairn::TensorView&,
                const cairn::TensorPart&, const cairn::Stream&, const cairn::Json&);
void Run0() {
  Initialise({.keep_last = 1}, {.slowdown = 0.1}, {.pin = true}, {.rank0_tensors = {}}, {.resume = false}, {.size = 2},
             {.data = nullptr}, {.offset = {}}, {.handle = 1}, {.vouched = true});
}
")
set(number 0)
foreach(page README.md docs/cpp.md docs/planning.md)
  file(READ ${SOURCE}/${page} text)
  set(line 1)
  set(first ${number})
  string(FIND "${text}" "```cpp\n" at)
  while(NOT at EQUAL -1)
    math(EXPR at "${at} + 7")
    string(SUBSTRING "${text}" 0 ${at} before)
    string(SUBSTRING "${text}" ${at} -1 text)
    string(FIND "${text}" "```" end)
    string(SUBSTRING "${text}" 0 ${end} block)
    string(REGEX REPLACE "[^\n]" "" before "${before}")
    string(LENGTH "${before}" passed)
    math(EXPR line "${line} + ${passed}")
    math(EXPR number "${number} + 1")
    if(block MATCHES "MakeTorchGroup")
      file(WRITE ${SCRATCH}/with_torch/example.inc "#line ${line} \"${page}\"\n${block}")
    else()
      string(APPEND blocks "void Run${number}() {\n#line ${line} \"${page}\"\n${block}}\n")
    endif()
    string(FIND "${text}" "```cpp\n" at)
  endwhile()
  if(number EQUAL first)
    message(FATAL_ERROR "${page}: no block of C++")
  endif()
endforeach()
file(WRITE ${SCRATCH}/blocks.cc "${blocks}")
set(warnings -Wall -Wextra -Werror)
foreach(name g++ clang++)
  find_program(compiler_${name} ${name})
  if(compiler_${name})
    run(${compiler_${name}} -std=c++20 ${warnings} -fsyntax-only -I${SCRATCH}/prefix/include ${SCRATCH}/blocks.cc)
  else()
    message(STATUS "the documentation's C++ is not compiled with ${name}: there is none")
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
if(PYTHON)
  get_filename_component(folder ${PYTHON} DIRECTORY)
  if(folder)
    set(ENV{PATH} "${folder}:$ENV{PATH}")
  endif()
  file(READ ${SOURCE}/docs/cpp.md text)
  string(REGEX MATCH "```cmake\n(cmake_minimum_required[^`]*)```" block "${text}")
  file(WRITE ${SCRATCH}/with_torch/CMakeLists.txt "${CMAKE_MATCH_1}")
  file(COPY ${SOURCE}/tests/consumer/torch/main.cc DESTINATION ${SCRATCH}/with_torch)
  string(JOIN " " flags ${warnings} -Wpedantic)
  run(${CMAKE_COMMAND} -S ${SCRATCH}/with_torch -B ${SCRATCH}/with_torch -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DCMAKE_CXX_FLAGS=${flags})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/with_torch)
  if(compiler_clang++)
    execute_process(COMMAND ${PYTHON} -c "import torch; print(torch.__path__[0] + '/include')" OUTPUT_VARIABLE torch
      OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    run(${compiler_clang++} -std=c++20 ${warnings} -fsyntax-only -I${SCRATCH}/prefix/include -isystem ${torch}
      -isystem ${torch}/torch/csrc/api/include ${SCRATCH}/with_torch/main.cc)
  endif()
  foreach(step 1 2)
    set(program ${SCRATCH}/with_torch/trainer ${SCRATCH}/torch_root ${SCRATCH}/store-${step})
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
