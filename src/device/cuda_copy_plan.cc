#include "device/cuda_copy_plan.h"

#include <algorithm>

#include "base/status_macros.h"

namespace cairn {
namespace {

CudaAddress AddressOf(const std::byte* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

class Planner {
 public:
  Planner(CopyDirection direction, std::uint64_t max_pitch, std::size_t pieces)
      : into_tensor_(direction == CopyDirection::kToDevice), max_pitch_(max_pitch) {
    plan_.to.reserve(pieces);
    plan_.from.reserve(pieces);
    plan_.sizes.reserve(pieces);
  }

  void Add(const CopyPiece& piece) {
    if (piece.begin >= piece.end) return;
    const StridedLayout& layout = *piece.tensor;
    if (layout.contiguous()) {
      AddRun(AddressOf(layout.base) + piece.begin, piece.memory, piece.end - piece.begin);
      return;
    }
    const auto stride = static_cast<std::uint64_t>(layout.outer[0].stride);
    std::byte* memory = piece.memory;
    std::uint64_t left = piece.end - piece.begin;
    CudaAddress row = AddressOf(layout.base) + piece.begin / layout.row_bytes * stride;
    if (const std::uint64_t skip = piece.begin % layout.row_bytes; skip != 0) {
      const std::uint64_t n = std::min(layout.row_bytes - skip, left);
      AddRun(row + skip, memory, n);
      memory += n;
      left -= n;
      row += stride;
    }
    const std::uint64_t whole_rows = left / layout.row_bytes;
    AddRows(row, memory, stride, layout.row_bytes, whole_rows);
    memory += whole_rows * layout.row_bytes;
    left -= whole_rows * layout.row_bytes;
    if (left != 0) AddRun(row + whole_rows * stride, memory, left);
  }

  CudaCopyPlan Take() { return std::move(plan_); }

 private:
  void AddRun(CudaAddress tensor, std::byte* memory, std::uint64_t n) {
    plan_.to.push_back(into_tensor_ ? tensor : AddressOf(memory));
    plan_.from.push_back(into_tensor_ ? AddressOf(memory) : tensor);
    plan_.sizes.push_back(n);
  }

  void AddRows(CudaAddress tensor, std::byte* memory, std::uint64_t stride, std::uint64_t width, std::uint64_t height) {
    if (height >= 2 && stride <= max_pitch_) {
      plan_.rows.push_back({.tensor = tensor, .memory = memory, .pitch = stride, .width = width, .height = height});
      return;
    }
    for (std::uint64_t i = 0; i < height; ++i) AddRun(tensor + i * stride, memory + i * width, width);
  }

  const bool into_tensor_;
  const std::uint64_t max_pitch_;
  CudaCopyPlan plan_;
};

}  // namespace

Result<CudaCopyPlan> PlanCudaCopies(const CopyBatch& batch, std::uint64_t max_pitch) {
  Planner planner(batch.direction, max_pitch, batch.pieces.size());
  for (const CopyPiece& piece : batch.pieces) {
    if (piece.tensor->outer.size() > 1) {
      return Error(StatusCode::kInternal, "a tensor of {} strided dimensions was given to a GPU copy, which takes one",
                   piece.tensor->outer.size());
    }
    if (piece.begin < piece.end && piece.end > piece.tensor->bytes) {
      return Error(StatusCode::kInvalidArgument, "bytes {} to {} of a tensor that has {}", piece.begin, piece.end,
                   piece.tensor->bytes);
    }
    planner.Add(piece);
  }
  return planner.Take();
}

}  // namespace cairn
