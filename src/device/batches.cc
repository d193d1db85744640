#include <algorithm>
#include <utility>

#include "device/cuda_kernel_plan.h"
#include "device/device.h"

namespace cairn {
namespace {

// Also an even piece may begin and end within a row; then it takes three operations. Lanes leave room for that.
std::uint64_t Operations(const CopyPiece& piece) {
  if (piece.rows == 1) return 1;
  const LogicalRows rows{
      .begin = piece.begin, .bytes = piece.end - piece.begin, .rows = piece.rows, .pitch = piece.tensor_pitch};
  return PlaceRows(*piece.tensor, rows) ? 1 : piece.rows;
}

CopyPiece Rows(const CopyPiece& piece, std::uint64_t first, std::uint64_t count) {
  CopyPiece part = piece;
  part.begin += first * piece.tensor_pitch;
  part.end += first * piece.tensor_pitch;
  part.memory += first * piece.memory_pitch;
  part.rows = count;
  return part;
}

std::vector<std::vector<CopyPiece>> ForCopies(const std::vector<CopyPiece>& pieces) {
  std::vector<std::vector<CopyPiece>> batches;
  std::uint64_t room = 0;
  const auto add = [&](const CopyPiece& piece, std::uint64_t operations) {
    if (room < operations) {
      batches.emplace_back();
      room = kMaxBatchOperations;
    }
    batches.back().push_back(piece);
    room -= operations;
  };
  for (const CopyPiece& piece : pieces) {
    if (Operations(piece) == 1) {
      add(piece, 1);
      continue;
    }
    for (std::uint64_t row = 0; row < piece.rows;) {
      const std::uint64_t count = std::min(piece.rows - row, room == 0 ? kMaxBatchOperations : room);
      add(Rows(piece, row, count), count);
      row += count;
    }
  }
  return batches;
}

// Each piece is one operation, except within a run of many small ones.
std::vector<std::vector<CopyPiece>> ForKernels(const std::vector<CopyPiece>& pieces) {
  std::vector<std::vector<CopyPiece>> batches;
  std::uint64_t room = 0;
  // Small pieces back to back in the batch, and where the last of them ends.
  std::uint64_t run = 0;
  const std::byte* next = nullptr;
  for (const CopyPiece& piece : pieces) {
    const bool continues = run != 0 && ContinuesTable(piece, next);
    const bool is_free = continues && run % kernels::kMaxPieces >= kFewPieces - 1;
    if (!is_free && room == 0) {
      batches.emplace_back();
      room = kMaxBatchOperations;
      run = 0;
    }
    batches.back().push_back(piece);
    if (!is_free) --room;
    run = ContinuesTable(piece, piece.memory) ? (continues ? run : 0) + 1 : 0;
    next = piece.memory + piece.bytes();
  }
  return batches;
}

}  // namespace

std::vector<std::vector<CopyPiece>> InBatches(const Device& device, std::vector<CopyPiece> pieces) {
  if (device.has_streams()) return device.has_kernels() ? ForKernels(pieces) : ForCopies(pieces);
  std::vector<std::vector<CopyPiece>> batches;
  batches.push_back(std::move(pieces));
  return batches;
}

}  // namespace cairn
