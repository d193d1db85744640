#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace cairn {

/// An address as the CUDA driver takes it (CUdeviceptr). With unified addressing, host addresses are valid too.
using CudaAddress = unsigned long long;

/// A CopyBatch in the driver's terms. `to`, `from` and `sizes` are the parallel arrays of a batch copy.
struct CudaCopyPlan {
  /// `height` rows of `width` bytes, `pitch` bytes apart in the tensor and `memory_pitch` bytes apart in `memory`.
  struct Rows {
    CudaAddress tensor = 0;
    std::byte* memory = nullptr;
    std::size_t pitch = 0;
    std::size_t memory_pitch = 0;
    std::size_t width = 0;
    std::size_t height = 0;
  };
  std::vector<CudaAddress> to;
  std::vector<CudaAddress> from;
  /// None of them is 0.
  std::vector<std::size_t> sizes;
  std::vector<Rows> rows;
};

/// Splits the pieces into contiguous runs and blocks of at least two rows. A row that a piece cuts becomes a run, and
/// so do rows further apart than `max_pitch`. Internal for more than one strided dimension: TakeForKernels has taken
/// it, or Device::CheckLayout has refused it. InvalidArgument for a piece beyond its tensor's end.
[[nodiscard]] Result<CudaCopyPlan> PlanCudaCopies(const CopyBatch& batch, std::uint64_t max_pitch);

}  // namespace cairn
