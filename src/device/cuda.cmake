# Selects the CUDA sources of this build. It needs cuda.h and cudaTypedefs.h, but no toolkit and no library; without
# them cuda_stub.cc reports Unsupported at run time. Sets CAIRN_CUDA_SOURCES and CAIRN_CUDA_LIBRARIES. The target
# cairn_cuda_headers exists if the headers do.
set(CAIRN_CUDA AUTO CACHE STRING "CUDA GPUs: AUTO (where cuda.h is found), ON (cuda.h is required) or OFF")
set_property(CACHE CAIRN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(cairn_cuda_oldest 12000)

set(cairn_cuda_version 0)
if(NOT CAIRN_CUDA STREQUAL "OFF")
  find_path(CAIRN_CUDA_INCLUDE_DIR cudaTypedefs.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda /usr/lib/cuda PATH_SUFFIXES include
    DOC "Folder of cuda.h and cudaTypedefs.h")
  if(CAIRN_CUDA_INCLUDE_DIR)
    file(STRINGS ${CAIRN_CUDA_INCLUDE_DIR}/cuda.h cairn_cuda_line REGEX "^#define CUDA_VERSION [0-9]+")
    string(REGEX MATCH "[0-9]+$" cairn_cuda_version "${cairn_cuda_line}")
  endif()
endif()

set(CAIRN_CUDA_LIBRARIES "")
set(CAIRN_CUDA_SOURCES cuda_copy_plan.cc cuda_stub.cc)
if(cairn_cuda_version GREATER_EQUAL cairn_cuda_oldest)
  message(STATUS "Cairn: CUDA headers ${cairn_cuda_version} in ${CAIRN_CUDA_INCLUDE_DIR}")
  add_library(cairn_cuda_headers INTERFACE)
  target_include_directories(cairn_cuda_headers SYSTEM INTERFACE ${CAIRN_CUDA_INCLUDE_DIR})
  set(CAIRN_CUDA_LIBRARIES $<BUILD_INTERFACE:cairn_cuda_headers> ${CMAKE_DL_LIBS})
  set(CAIRN_CUDA_SOURCES cuda_copy_plan.cc cuda_completions.cc cuda_context.cc cuda_driver.cc cuda_enqueue.cc
    cuda_device.cc)
elseif(CAIRN_CUDA STREQUAL "ON")
  message(FATAL_ERROR "CAIRN_CUDA=ON: no CUDA headers of version ${cairn_cuda_oldest} or newer (found: "
    "'${CAIRN_CUDA_INCLUDE_DIR}' ${cairn_cuda_version}); set CAIRN_CUDA_INCLUDE_DIR")
else()
  message(STATUS "Cairn: built without CUDA (CAIRN_CUDA=${CAIRN_CUDA}, headers found: ${cairn_cuda_version})")
endif()
