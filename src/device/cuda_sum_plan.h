#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/sum_kernel.h"

namespace cairn {

/// The launches of the kernel that sums up a batch's pieces, each with the numbers of its slices, one launch's after
/// the other's.
struct CudaSumPlan {
  std::vector<kernels::SumTable> tables;
};

/// Null if the kernel does not serve the batch: a piece of a tensor with strides, or in rows, or beyond its tensor's
/// end; no byte at all, more than `most_bytes`, which is at most 1 GiB, or too many pieces.
[[nodiscard]] std::optional<CudaSumPlan> PlanCudaSums(std::span<const CopyPiece> pieces, std::uint64_t most_bytes);

/// The most numbers of a plan for at most this many bytes.
[[nodiscard]] std::size_t MaxSlices(std::uint64_t bytes);

/// Has the launches write their numbers there.
void PlaceSlices(CudaSumPlan& plan, std::uint32_t* slices);

/// The CRC32C of each kChecksumBlock of the batch, once the launches are done.
void CombineSlices(const CudaSumPlan& plan, const std::uint32_t* slices, std::uint32_t* sums);

}  // namespace cairn
