#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace cairn {

/// An address as the CUDA driver takes it (CUdeviceptr); host memory's are the same numbers under unified addressing.
using CudaAddress = unsigned long long;

/// What a CopyBatch comes to in the driver's terms. The arrays of one length are what a batch copy takes.
struct CudaCopyPlan {
  /// `height` rows of `width` bytes, `pitch` bytes apart in the tensor and `memory_pitch` in `memory`.
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
  std::vector<std::size_t> sizes;  ///< None is 0.
  std::vector<Rows> rows;
};

/// Splits the pieces into runs of bytes and blocks of at least two rows; a row of the tensor that a piece cuts is a
/// run. Rows further apart than `max_pitch` become runs of their own. Internal for more than one strided dimension,
/// which Device::CheckLayout refuses; InvalidArgument for a piece beyond its tensor's end.
[[nodiscard]] Result<CudaCopyPlan> PlanCudaCopies(const CopyBatch& batch, std::uint64_t max_pitch);

}  // namespace cairn
