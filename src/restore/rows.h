#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "restore/match.h"

namespace cairn {

/// Evenly spaced rows of a copy: from data byte `from` of the shard on, to the target's logical byte `to`.
struct PlannedRows {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  /// Of each row.
  std::uint64_t bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t from_pitch = 0;
  std::uint64_t to_pitch = 0;
  friend bool operator==(const PlannedRows&, const PlannedRows&) = default;
};

/// Iterates over the rows that a copy takes from a shard's data bytes [begin, end), in shard order. Rows that cross
/// either end are cut.
class RowCursor {
 public:
  RowCursor(const PlannedCopy& copy, std::uint64_t begin, std::uint64_t end);
  /// None at the end.
  [[nodiscard]] std::optional<PlannedRows> Next();

 private:
  void Advance(std::uint64_t rows);

  const PlannedCopy& copy_;
  const std::uint64_t end_;
  // The bytes of the next row before `begin`.
  std::uint64_t skip_ = 0;
  // Begin of the whole next row.
  std::uint64_t from_ = 0;
  std::uint64_t to_ = 0;
  // Of the next row, by level.
  std::vector<std::uint64_t> index_;
};

}  // namespace cairn
