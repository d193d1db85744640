# The module libcairn_train_nccl.so, where torch's Python packages brought NCCL and CUDA, with their headers. Others would
# not do: c10d's classes have another layout with another version. The trainer loads it for --backend nccl, and starts
# without it.
file(GLOB cuda_headers ${CAIRN_TORCH_DIR}/../nvidia/cu*/include ${CAIRN_TORCH_DIR}/../nvidia/cuda_runtime/include)
find_path(CAIRN_NCCL_HEADERS nccl.h PATHS ${CAIRN_TORCH_DIR}/../nvidia/nccl/include NO_DEFAULT_PATH)
find_path(CAIRN_CUDA_HEADERS cuda_runtime_api.h PATHS ${cuda_headers} NO_DEFAULT_PATH)
if(NOT CAIRN_NCCL_HEADERS OR NOT CAIRN_CUDA_HEADERS OR NOT EXISTS ${CAIRN_TORCH_DIR}/lib/libtorch_cuda.so)
  message(STATUS "torch's packages have no NCCL and CUDA: the trainer has no --backend nccl")
  add_custom_target(cairn_train_nccl)
  return()
endif()
add_library(cairn_train_nccl MODULE ranks/nccl_module.cc)
target_compile_definitions(cairn_train_nccl PRIVATE USE_C10D_NCCL)
target_include_directories(cairn_train_nccl PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(cairn_train_nccl SYSTEM PRIVATE ${CAIRN_CUDA_HEADERS} ${CAIRN_NCCL_HEADERS})
target_link_libraries(cairn_train_nccl PRIVATE cairn_headers cairn_flags cairn_torch
  ${CAIRN_TORCH_DIR}/lib/libtorch_cuda.so ${CAIRN_TORCH_DIR}/lib/libc10_cuda.so)
set_target_properties(cairn_train_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
