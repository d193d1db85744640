#pragma once

#include <cstdint>

#include "device/kernel_threads.h"
#include "device/ptx_machine.h"

namespace cairn {

/// Runs the PTX's kernel in a grid of one block, or of two where that gives the number of threads.
template <typename Access>
void RunPtx(const PtxKernel& kernel, const void* parameter, std::uint64_t threads, Access& access) {
  const PtxKernel::Memory memory{
      .load = [&access](std::uint64_t address, std::size_t bytes) -> std::uint64_t {
        if (bytes == 8) return access.template Load<kernels::U64>(address);
        if (bytes == 4) return access.template Load<kernels::U32>(address);
        if (bytes == 2) return access.template Load<kernels::U16>(address);
        return access.template Load<kernels::U8>(address);
      },
      .store =
          [&access](std::uint64_t address, std::size_t bytes, std::uint64_t value) {
            if (bytes == 8) return access.Store(address, static_cast<kernels::U64>(value));
            if (bytes == 4) return access.Store(address, static_cast<kernels::U32>(value));
            if (bytes == 2) return access.Store(address, static_cast<kernels::U16>(value));
            access.Store(address, static_cast<kernels::U8>(value));
          },
      .load_word = [&access](std::uint64_t address) { return access.template Load<kernels::Word>(address); },
      .store_word = [&access](std::uint64_t address, kernels::Word word) { access.Store(address, word); }};
  const auto blocks = static_cast<std::uint32_t>(threads % 2 == 0 ? 2 : 1);
  const std::uint32_t block = static_cast<std::uint32_t>(threads) / blocks;
  RunGrid(threads, 3, [&](std::uint64_t thread) {
    kernel.Run(static_cast<const std::byte*>(parameter), static_cast<std::uint32_t>(thread), block, blocks, memory);
  });
}

}  // namespace cairn
