# Installs the build tree, moves the installed tree, builds and runs the consumer project against it, and compiles the
# README's C++.
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
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer ${SCRATCH}/root)

file(READ ${README} readme)
string(REGEX MATCH "```cpp\n([^`]*)```" block "${readme}")
string(REGEX MATCH "(#include [^\n]*\nusing [^\n]*\n)(.*)" found "${CMAKE_MATCH_1}")
if(NOT found)
  message(FATAL_ERROR "README.md: no block of C++ that begins with its include and its using")
endif()
file(WRITE ${SCRATCH}/readme.cc "${CMAKE_MATCH_1}
template <typename T>
T Check(cairn::Result<T> result);
void Check(const cairn::Status& status);
void ForwardAndBackward(std::uintptr_t stream);
void OptimizerStep(std::uintptr_t stream);
void Train(const char* root, void* weight, cairn::DeviceId gpu, std::uintptr_t stream, std::uint64_t steps) {
${CMAKE_MATCH_2}}
")
run(${COMPILER} -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I${SCRATCH}/prefix/include ${SCRATCH}/readme.cc)
file(REMOVE_RECURSE ${SCRATCH})
