#include "restore/rows.h"

#include <algorithm>

namespace cairn {

RowCursor::RowCursor(const PlannedCopy& copy, std::uint64_t begin, std::uint64_t end)
    : copy_(copy), end_(std::min(end, copy.end)), from_(copy.begin - copy.skip), to_(copy.target_begin) {
  skip_ = std::max(begin, copy.begin) - from_;
  if (copy.rows == nullptr) return;
  for (const RowShape::Level& level : copy.rows->levels) {
    const std::uint64_t i = std::min(skip_ / level.from, level.count - 1);
    index_.push_back(i);
    from_ += i * level.from;
    to_ += i * level.to;
    skip_ -= i * level.from;
  }
  if (skip_ >= copy.rows->size) Advance(1);  // It begins in the gap after the row.
}

std::optional<PlannedRows> RowCursor::Next() {
  if (from_ + skip_ >= end_) return {};
  PlannedRows rows{.from = from_ + skip_, .to = to_ + skip_};
  const RowShape* const shape = copy_.rows;
  if (shape == nullptr) {
    rows.bytes = end_ - rows.from;
    from_ = end_;
    return rows;
  }
  if (skip_ != 0 || from_ + shape->size > end_) {
    rows.bytes = std::min(end_, from_ + shape->size) - rows.from;
    Advance(1);
    return rows;
  }
  const RowShape::Level& level = shape->levels.back();
  rows.bytes = shape->size;
  rows.rows = std::min(level.count - index_.back(), (end_ - from_ - shape->size) / level.from + 1);
  rows.from_pitch = level.from;
  rows.to_pitch = level.to;
  Advance(rows.rows);
  return rows;
}

// Moves forward by so many rows of the innermost level, which must have them.
void RowCursor::Advance(std::uint64_t rows) {
  skip_ = 0;
  const std::vector<RowShape::Level>& levels = copy_.rows->levels;
  std::size_t d = levels.size() - 1;
  index_[d] += rows;
  from_ += rows * levels[d].from;
  to_ += rows * levels[d].to;
  for (; index_[d] == levels[d].count; --d) {
    if (d == 0) {
      from_ = end_;
      return;
    }
    from_ += levels[d - 1].from - levels[d].count * levels[d].from;
    to_ += levels[d - 1].to - levels[d].count * levels[d].to;
    index_[d] = 0;
    ++index_[d - 1];
  }
}

}  // namespace cairn
