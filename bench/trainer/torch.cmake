# Defines the target cairn_torch: libtorch, from the Python package torch of CAIRN_PYTHON.
#
# The package's CMake files look for a CUDA toolkit and fail with some versions; only headers and libraries are needed.
# Only the CPU library is linked. The CUDA library is loaded on demand (see device.cc), so a CPU run neither maps nor
# needs it. libtorch finds its neighbours through its run path; the linker needs -rpath-link for them.
if(NOT CAIRN_PYTHON)
  set(python python3)
  if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  set(CAIRN_PYTHON ${python} CACHE STRING "Python with numpy and safetensors (and torch), for tests" FORCE)
endif()

if(NOT CAIRN_TORCH_FOUND_BY STREQUAL CAIRN_PYTHON OR NOT EXISTS "${CAIRN_TORCH_DIR}/lib/libtorch_cpu.so")
  execute_process(
    COMMAND ${CAIRN_PYTHON} -c "import os, torch
print(os.path.dirname(torch.__file__), torch.__version__, int(torch.compiled_with_cxx11_abi()), sep=';')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE why RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "The trainer needs a Python with torch, but ${CAIRN_PYTHON} has none: run scripts/setup, "
      "set CAIRN_PYTHON, or configure with -DCAIRN_BUILD_TRAINER=OFF.\n${why}")
  endif()
  list(GET found 0 directory)
  list(GET found 1 version)
  list(GET found 2 abi)
  message(STATUS "Found torch ${version} (${CAIRN_PYTHON})")
  set(CAIRN_TORCH_DIR ${directory} CACHE INTERNAL "")
  set(CAIRN_TORCH_CXX11_ABI ${abi} CACHE INTERNAL "")
  set(CAIRN_TORCH_FOUND_BY ${CAIRN_PYTHON} CACHE INTERNAL "")
endif()

add_library(cairn_c10 SHARED IMPORTED GLOBAL)
set_target_properties(cairn_c10 PROPERTIES IMPORTED_LOCATION ${CAIRN_TORCH_DIR}/lib/libc10.so)
add_library(cairn_torch SHARED IMPORTED GLOBAL)
set_target_properties(cairn_torch PROPERTIES IMPORTED_LOCATION ${CAIRN_TORCH_DIR}/lib/libtorch_cpu.so)
target_include_directories(cairn_torch SYSTEM INTERFACE
  ${CAIRN_TORCH_DIR}/include ${CAIRN_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(cairn_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${CAIRN_TORCH_CXX11_ABI})
target_link_libraries(cairn_torch INTERFACE cairn_c10)
file(GLOB beside ${CAIRN_TORCH_DIR}/lib ${CAIRN_TORCH_DIR}/../nvidia/*/lib)
foreach(folder ${beside})
  target_link_options(cairn_torch INTERFACE LINKER:-rpath-link,${folder})
endforeach()
