#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/copy_kernels.h"
#include "device/device.h"

namespace cairn {

/// The part of a CopyBatch that kernels copy.
struct CudaKernelPlan {
  std::vector<kernels::StridedCopy> strided;
  std::vector<kernels::PieceTable> tables;

  /// How many launches.
  [[nodiscard]] std::size_t size() const { return strided.size() + tables.size(); }
};

/// Takes from the batch what the copy engines cannot do, or do slowly: more than one strided dimension, rows that are
/// short or unevenly spaced, and many small pieces that lie back to back in memory. What is left is for PlanCudaCopies,
/// which also refuses pieces beyond their tensor's end.
[[nodiscard]] CudaKernelPlan TakeForKernels(CopyBatch& batch);

/// Whether a kernel copies the piece, however few there are.
[[nodiscard]] bool NeedsKernel(const CopyPiece& piece);
/// Whether the piece is one that kernels copy by the hundreds, if it begins at `next`, where the piece before it ends
/// in memory.
[[nodiscard]] bool ContinuesTable(const CopyPiece& piece, const std::byte* next);
/// Fewer pieces back to back are not worth a launch.
inline constexpr std::uint64_t kFewPieces = 4;

/// The piece as a kernel takes it. It is not empty, and within its tensor.
[[nodiscard]] kernels::StridedCopy KernelCopyOf(const CopyPiece& piece, CopyDirection direction);

/// How many blocks of kernels::kThreadsPerBlock threads share this many words: few, to leave the GPU to training.
[[nodiscard]] unsigned int KernelBlocks(std::uint64_t words, CopyDirection direction);

}  // namespace cairn
