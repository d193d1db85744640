// What PCcheck's engine needs of CUDA, on a machine without: pinned memory that is not pinned, every page touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };

inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  *memory = at;
  return cudaSuccess;
}
