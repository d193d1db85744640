#pragma once

#include <cstdint>
#include <vector>

#include "format/shard_header.h"
#include "restore/match.h"

namespace cairn {

// What to read, as a pure function: copies -> reads.

/// One read: data bytes [begin, end) of a shard; widened to whole kBlocks of the file they fit in a chunk. If the shard
/// has checksums, begin is a multiple of kChecksumBlock, and so is end, except at the data's end. Of the copies from
/// the first on, all that begin before its end overlap it.
struct PlannedRead {
  std::uint32_t shard = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// The first of the shard's copies that overlaps it.
  std::uint32_t first_copy = 0;
  /// The range of the file to read, multiples of kBlock: holds [begin, end) and may reach beyond the file's end.
  std::uint64_t file_begin = 0;
  std::uint64_t file_bytes = 0;
  friend bool operator==(const PlannedRead&, const PlannedRead&) = default;
};

/// Divides what the copies need into reads, in file order. Sorts `copies` by begin, and splits overlapping ones at the
/// ends of reads. `chunk_bytes` is a multiple of kChecksumBlock.
[[nodiscard]] std::vector<PlannedRead> PlanReads(std::uint32_t shard, const ShardHeader& header,
                                                 std::vector<PlannedCopy>& copies, std::uint64_t chunk_bytes);
/// The same for every data byte of the shard.
[[nodiscard]] std::vector<PlannedRead> PlanWholeShard(std::uint32_t shard, const ShardHeader& header,
                                                      std::uint64_t chunk_bytes);

}  // namespace cairn
