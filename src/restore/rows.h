#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "restore/plan.h"

namespace cairn {

/// Rows of a copy that lie evenly apart: from data byte `from` of the shard on, and to logical byte `to` of the target.
struct PlannedRows {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;  ///< Of each.
  std::uint64_t rows = 1;
  std::uint64_t from_pitch = 0;
  std::uint64_t to_pitch = 0;
  friend bool operator==(const PlannedRows&, const PlannedRows&) = default;
};

/// Walks over what a copy takes of a shard's data bytes [begin, end), in the order of the shard; rows that begin or end
/// beyond them come cut.
class RowCursor {
 public:
  RowCursor(const PlannedCopy& copy, std::uint64_t begin, std::uint64_t end);
  /// None at the end.
  [[nodiscard]] std::optional<PlannedRows> Next();

 private:
  void Advance(std::uint64_t rows);

  const PlannedCopy& copy_;
  const std::uint64_t end_;
  std::uint64_t skip_ = 0;  // Of the next row: what lies in front of `begin`.
  std::uint64_t from_ = 0;  // Where the next row begins, whole.
  std::uint64_t to_ = 0;
  std::vector<std::uint64_t> index_;  // The next row's, by level.
};

}  // namespace cairn
