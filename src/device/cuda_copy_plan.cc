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
    if (piece.rows > 1) return AddRowsOf(piece);
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
    AddRows({.tensor = row,
             .memory = memory,
             .pitch = stride,
             .memory_pitch = layout.row_bytes,
             .width = layout.row_bytes,
             .height = whole_rows});
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

  void AddRows(const CudaCopyPlan::Rows& rows) {
    if (rows.height >= 2 && rows.pitch <= max_pitch_ && rows.memory_pitch <= max_pitch_) {
      plan_.rows.push_back(rows);
      return;
    }
    for (std::uint64_t i = 0; i < rows.height; ++i) {
      AddRun(rows.tensor + i * rows.pitch, rows.memory + i * rows.memory_pitch, rows.width);
    }
  }

  void AddRowsOf(const CopyPiece& piece) {
    const std::uint64_t width = piece.end - piece.begin;
    const auto placed = PlaceRows(
        *piece.tensor, {.begin = piece.begin, .bytes = width, .rows = piece.rows, .pitch = piece.tensor_pitch});
    if (placed) {
      return AddRows({.tensor = AddressOf(placed->address),
                      .memory = piece.memory,
                      .pitch = static_cast<std::size_t>(placed->pitch),
                      .memory_pitch = piece.memory_pitch,
                      .width = width,
                      .height = piece.rows});
    }
    for (std::uint64_t i = 0; i < piece.rows; ++i) {
      const std::uint64_t begin = piece.begin + i * piece.tensor_pitch;
      Add({.tensor = piece.tensor,
           .begin = begin,
           .end = begin + width,
           .memory = piece.memory + i * piece.memory_pitch});
    }
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
      return Error(StatusCode::kInternal, "a GPU copy takes at most one strided dimension, found {}",
                   piece.tensor->outer.size());
    }
    if (piece.begin < piece.end && piece.tensor_end() > piece.tensor->bytes) {
      return Error(StatusCode::kInvalidArgument, "copy of bytes {} to {} of a tensor of {} bytes", piece.begin,
                   piece.tensor_end(), piece.tensor->bytes);
    }
    planner.Add(piece);
  }
  return planner.Take();
}

}  // namespace cairn
