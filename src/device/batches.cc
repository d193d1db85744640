#include <algorithm>
#include <utility>

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

}  // namespace

std::vector<std::vector<CopyPiece>> InBatches(const Device& device, std::vector<CopyPiece> pieces) {
  std::vector<std::vector<CopyPiece>> batches;
  if (!device.has_streams()) {
    batches.push_back(std::move(pieces));
    return batches;
  }
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

}  // namespace cairn
