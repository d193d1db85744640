#include "restore/plan.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

// Cuts data ranges (ascending, disjoint) at chunk size. Cuts are at file offsets, to which O_DIRECT's alignment
// applies. With checksums both alignments coincide, because the data begins at a multiple of kBlock.
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

void SortByBegin(std::vector<PlannedCopy>& copies) {
  // There may be a hundred thousand, so sort small items.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
  order.reserve(copies.size());
  for (const PlannedCopy& copy : copies) order.emplace_back(copy.begin, static_cast<std::uint32_t>(order.size()));
  if (std::ranges::is_sorted(order)) return;
  std::ranges::sort(order);
  std::vector<PlannedCopy> sorted;
  sorted.reserve(copies.size());
  for (const auto& [begin, copy] : order) sorted.push_back(copies[copy]);
  copies = std::move(sorted);
}

// Cuts copies at the ends of reads. When copies overlap, a long one would otherwise be the first of every read that it
// overlaps, and all short ones after it would be visited for each of these reads.
void CutAtReads(std::vector<PlannedCopy>& copies, const std::vector<PlannedRead>& reads) {
  std::vector<PlannedCopy> cut;
  cut.reserve(copies.size());
  for (PlannedCopy copy : copies) {
    auto read = std::upper_bound(reads.begin(), reads.end(), copy.begin,
                                 [](std::uint64_t begin, const PlannedRead& r) { return begin < r.end; });
    for (; copy.end > read->end; ++read) {
      cut.push_back(copy);
      cut.back().end = read->end;
      (copy.rows == nullptr ? copy.target_begin : copy.skip) += read->end - copy.begin;
      copy.begin = read->end;
    }
    cut.push_back(copy);
  }
  copies = std::move(cut);
  SortByBegin(copies);
}

}  // namespace

std::vector<PlannedRead> PlanReads(std::uint32_t shard, const ShardHeader& header, std::vector<PlannedCopy>& copies,
                                   std::uint64_t chunk_bytes) {
  SortByBegin(copies);
  bool overlap = false;
  std::uint64_t reach = 0;
  // Without checksums any bytes can be read alone, but reading a gap shorter than a block is cheaper than skipping it.
  const std::uint64_t unit = header.sums.empty() ? 1 : kChecksumBlock;
  const std::uint64_t skip = header.sums.empty() ? kChecksumBlock : 0;
  std::vector<Range> ranges;
  for (const PlannedCopy& copy : copies) {
    overlap = overlap || copy.begin < reach;
    reach = std::max(reach, copy.end);
    const std::uint64_t begin = AlignDown(copy.begin, unit);
    const std::uint64_t end = std::min(AlignUp(copy.end, unit), header.data_bytes());
    if (!ranges.empty() && begin <= ranges.back().end + skip) {
      ranges.back().end = std::max(ranges.back().end, end);
    } else {
      ranges.push_back({begin, end});
    }
  }
  std::vector<PlannedRead> reads = CutRanges(shard, header, ranges, chunk_bytes);
  if (overlap) CutAtReads(copies, reads);
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
