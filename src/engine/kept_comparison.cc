#include "engine/kept_comparison.h"

#include <algorithm>

#include "base/bytes.h"

namespace cairn {

bool KeptComparison::Compare(const FilledChunk& chunk, std::span<const std::uint32_t> sums) {
  if (differs_) return false;
  const Range range{.begin = chunk.begin - snapshot_.kept_begin(), .end = chunk.end - snapshot_.kept_begin()};
  const auto expected = std::span(before_->sums).subspan(range.begin / kChecksumBlock, sums.size());
  differs_ = !std::ranges::equal(sums, expected);
  if (!differs_) same_.push_back(range);
  return !differs_;
}

KeptCopy KeptComparison::Copies(std::uint64_t data_begin) const {
  const std::uint64_t data_before = before_->shard.length - snapshot_.kept_bytes();
  KeptCopy copy{.file = before_->fd};
  for (const Range& range : same_) {
    const auto sums = std::span(before_->sums)
                          .subspan(range.begin / kChecksumBlock, DivideUp(range.end - range.begin, kChecksumBlock));
    copy.pieces.push_back({.from = data_before + range.begin,
                           .to = data_begin + range.begin,
                           .bytes = range.end - range.begin,
                           .sums = {sums.begin(), sums.end()}});
  }
  return copy;
}

}  // namespace cairn
