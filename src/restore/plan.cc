#include "restore/plan.h"

#include <algorithm>

namespace cairn {
namespace {

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

// Cuts needed data ranges (ascending, apart) at chunk size; the cuts are made in the file's offsets, where O_DIRECT's
// alignment counts. With checksums both alignments fall together: the data begins at a kBlock.
std::vector<PlannedRead> CutRanges(std::uint32_t shard, const ShardHeader& header, const std::vector<Range>& ranges,
                                   std::uint64_t chunk_bytes) {
  std::vector<PlannedRead> reads;
  for (const Range& range : ranges) {
    const std::uint64_t file_end = header.data_begin + range.end;
    for (std::uint64_t at = AlignDown(header.data_begin + range.begin, kBlock); at < file_end; at += chunk_bytes) {
      const std::uint64_t end = std::min(at + chunk_bytes, file_end);
      const std::uint64_t begin = std::max(at, header.data_begin + range.begin);
      reads.push_back({.shard = shard,
                       .begin = begin - header.data_begin,
                       .end = end - header.data_begin,
                       .file_begin = at,
                       .file_bytes = AlignUp(end, kBlock) - at});
    }
  }
  return reads;
}

}  // namespace

std::vector<PlannedRead> PlanReads(std::uint32_t shard, const ShardHeader& header, std::vector<PlannedCopy>& copies,
                                   std::uint64_t chunk_bytes) {
  std::stable_sort(copies.begin(), copies.end(),
                   [](const PlannedCopy& a, const PlannedCopy& b) { return a.begin < b.begin; });
  const std::uint64_t unit = header.sums.empty() ? 1 : kChecksumBlock;
  std::vector<Range> ranges;
  for (const PlannedCopy& copy : copies) {
    const std::uint64_t begin = AlignDown(copy.begin, unit);
    const std::uint64_t end = std::min(AlignUp(copy.end, unit), header.data_bytes());
    if (!ranges.empty() && begin <= ranges.back().end) {
      ranges.back().end = std::max(ranges.back().end, end);
    } else {
      ranges.push_back({begin, end});
    }
  }
  std::vector<PlannedRead> reads = CutRanges(shard, header, ranges, chunk_bytes);
  std::uint32_t copy = 0;
  for (PlannedRead& read : reads) {
    while (copy < copies.size() && copies[copy].end <= read.begin) ++copy;
    read.first_copy = copy;
  }
  return reads;
}

std::vector<PlannedRead> PlanWholeShard(std::uint32_t shard, const ShardHeader& header, std::uint64_t chunk_bytes) {
  return CutRanges(shard, header, {{0, header.data_bytes()}}, chunk_bytes);
}

}  // namespace cairn
