# Installs the build tree, moves the installed tree, and builds and runs the consumer project against it.
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
file(REMOVE_RECURSE ${SCRATCH})
