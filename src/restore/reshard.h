#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cairn/tensor.h"
#include "format/shard_header.h"

namespace cairn {

// Wholes from parts that were cut in another way, as pure functions: boxes of elements -> contiguous runs.

/// Elements [begin, end) of a logical tensor, in each dimension.
struct Box {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;
  [[nodiscard]] bool empty() const;
  /// How many there are. Of a tensor that its table or header accepted: below 2^62.
  [[nodiscard]] std::uint64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Where a tensor of that shape sits in its whole; without a part it is the whole.
[[nodiscard]] Box BoxOf(const std::vector<std::int64_t>& shape, const std::optional<TensorPart>& part);
/// What two boxes of one tensor share; empty where that is nothing.
[[nodiscard]] Box Intersect(const Box& a, const Box& b);

/// Rows of elements (or of bytes) that lie back to back on two sides; the rows are repeated along each level, as a cut
/// through inner dimensions leaves them.
struct RowShape {
  struct Level {
    std::uint64_t count = 0;
    std::uint64_t from = 0;  ///< From one to the next on the one side; beyond all that the levels within reach over.
    std::uint64_t to = 0;    ///< The same on the other side.
    friend bool operator==(const Level&, const Level&) = default;
  };
  std::uint64_t size = 0;     ///< Of a row.
  std::vector<Level> levels;  ///< Outermost first.

  /// From the first row's begin to the last one's end, on the side of `from`, along the levels from that one on.
  [[nodiscard]] std::uint64_t Reach(std::size_t level = 0) const;
  friend bool operator==(const RowShape&, const RowShape&) = default;
};
/// The elements that two boxes of one tensor share, each stored in row-major order: rows as long as they go, from
/// element `from` of the one and from element `to` of the other on. Of size 0 where they share none.
struct SharedRows {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  RowShape shape;
};
[[nodiscard]] SharedRows FindSharedRows(const Box& from, const Box& to);

/// A saved tensor as a piece of a logical one.
struct SavedPiece {
  Box box;
  std::uint32_t shard = 0;
  const ShardTensor* tensor = nullptr;
};

/// The pieces of one logical tensor, none twice, none overlapping another. Finds those that a box needs without a walk
/// over all of them.
class PieceSet {
 public:
  /// Takes all saved pieces; of those with the same box (replicas) it keeps the first. Pieces without elements go.
  explicit PieceSet(std::vector<SavedPiece> pieces);

  /// Two pieces that share some elements and are no replicas; where there are any, nothing else here means anything.
  [[nodiscard]] const std::optional<std::pair<SavedPiece, SavedPiece>>& overlap() const { return overlap_; }
  /// The pieces that share elements with the box.
  [[nodiscard]] std::vector<const SavedPiece*> Touching(const Box& box) const;

 private:
  std::vector<SavedPiece> pieces_;   // By where they begin in dimension along_.
  std::size_t along_ = 0;            // The dimension with the most cuts.
  std::vector<std::int64_t> reach_;  // How far the pieces up to each one go in that dimension.
  std::optional<std::pair<SavedPiece, SavedPiece>> overlap_;
};

}  // namespace cairn
