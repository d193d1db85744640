#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/emulation/gpu.h"
#include "device/buffer_pool.h"

namespace cairn::bench {

/// Chunks in huge pages, every page touched before anything is measured. `chunk_bytes` is a multiple of 4096.
[[nodiscard]] inline Result<std::unique_ptr<BufferPool>> MakeHostMemory(std::uint64_t bytes,
                                                                        std::uint64_t chunk_bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool, BufferPool::Make(bytes, chunk_bytes, 1));
  WorkerPool workers("touch", static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  pool->Touch(workers);  // As Cairn's pool is: a restart waits for it.
  return pool;
}

/// The same, pinned for the GPU, which outlives it.
[[nodiscard]] inline Result<std::unique_ptr<BufferPool>> MakePinnedMemory(const Gpu& gpu, std::uint64_t bytes,
                                                                          std::uint64_t chunk_bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool, MakeHostMemory(bytes, chunk_bytes));
  CAIRN_RETURN_IF_ERROR(pool->PinWith(*gpu.device()));
  return pool;
}

}  // namespace cairn::bench
