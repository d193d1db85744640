#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cairn/tensor.h"
#include "format/shard_header.h"

namespace cairn {

// Assembling tensors from parts that were cut differently, as pure functions: boxes of elements -> contiguous runs.

/// Elements [begin, end) of a logical tensor, in each dimension.
struct Box {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;
  [[nodiscard]] bool empty() const;
  /// Below 2^62 for a tensor that its table or header accepted.
  [[nodiscard]] std::uint64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

/// The position of a tensor of that shape in its logical tensor; without a part it is the whole.
[[nodiscard]] Box BoxOf(const std::vector<std::int64_t>& shape, const std::optional<TensorPart>& part);
/// The elements in both boxes of one tensor; may be empty.
[[nodiscard]] Box Intersect(const Box& a, const Box& b);

/// Rows of elements (or bytes) that are contiguous on both sides, repeated along each level, as cuts through inner
/// dimensions leave them.
struct RowShape {
  struct Level {
    std::uint64_t count = 0;
    /// Distance between repetitions on the source side; more than the inner levels span.
    std::uint64_t from = 0;
    /// The same on the target side.
    std::uint64_t to = 0;
    friend bool operator==(const Level&, const Level&) = default;
  };
  /// Of one row.
  std::uint64_t size = 0;
  /// Outermost first.
  std::vector<Level> levels;

  /// From the begin of the first row to the end of the last, on the source side, for the levels from `level` on.
  [[nodiscard]] std::uint64_t Reach(std::size_t level = 0) const;
  friend bool operator==(const RowShape&, const RowShape&) = default;
};
/// The elements in both of two row-major boxes of one tensor, as rows of maximal length: from element `from` of the one
/// and element `to` of the other on. Of size 0 if there are none.
struct SharedRows {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  RowShape shape;
};
[[nodiscard]] SharedRows FindSharedRows(const Box& from, const Box& to);

/// A saved tensor as a piece of a logical tensor.
struct SavedPiece {
  Box box;
  std::uint32_t shard = 0;
  const ShardTensor* tensor = nullptr;
};

/// The pieces of one logical tensor, without replicas or overlaps. Finds the pieces for a box without visiting all.
class PieceSet {
 public:
  /// Takes all saved pieces. Of those with the same box (replicas) it keeps the first; it drops pieces without
  /// elements.
  explicit PieceSet(std::vector<SavedPiece> pieces);

  /// Two pieces that overlap and are not replicas. If there are any, nothing else here is meaningful.
  [[nodiscard]] const std::optional<std::pair<SavedPiece, SavedPiece>>& overlap() const { return overlap_; }
  /// The pieces that share elements with the box.
  [[nodiscard]] std::vector<const SavedPiece*> Touching(const Box& box) const;

 private:
  // Sorted by their begin in dimension along_, which has the most cuts.
  std::vector<SavedPiece> pieces_;
  std::size_t along_ = 0;
  // The largest end in that dimension of the pieces up to each one.
  std::vector<std::int64_t> reach_;
  std::optional<std::pair<SavedPiece, SavedPiece>> overlap_;
};

}  // namespace cairn
