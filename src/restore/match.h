#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/checkpointer.h"
#include "format/shard_header.h"
#include "restore/reshard.h"

namespace cairn {

// Where what is wanted was saved, as a pure function: headers of saved shards x wanted tensors -> copies.

/// One shard in the plan.
struct SavedShard {
  /// For messages.
  std::string file;
  /// From DecodeShardHeader. Null if not read: then the shard's tensors are not found.
  const ShardHeader* header = nullptr;
};

/// Data bytes [begin, end) of a shard, or the rows among them (see RowCursor), and the target's logical bytes from
/// `target_begin` on that receive them. A target may be filled by many copies from several shards; no two write the
/// same byte.
struct PlannedCopy {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const StridedLayout* target = nullptr;
  std::uint64_t target_begin = 0;
  DeviceId device;
  /// For messages.
  std::string_view name;
  /// The target may share memory with another: the two must not be written at the same time.
  bool shares_memory = false;
  /// Not null: only the rows of this shape (in bytes) within [begin, end). The first row begins at begin - skip and
  /// goes to target_begin. Gaps between rows are shorter than kChecksumBlock.
  const RowShape* rows = nullptr;
  std::uint64_t skip = 0;
};

/// What a state needs from the shards.
struct MatchedTensors {
  /// By shard; layouts point into the table.
  std::vector<std::vector<PlannedCopy>> copies;
  /// The copies' rows point here.
  std::deque<RowShape> shapes;
  /// Wanted but not saved; only with allow_missing.
  std::vector<std::string> missing;
  /// Targets to write, and their bytes; tied ones count once.
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// Finds each wanted tensor (options.names of the table) in the shards, also through aliases.
///
/// First by the same name, dtype, shape and part. If several shards hold it, this rank's own is preferred, then the
/// lowest. Otherwise a part, or a whole tensor that was not saved whole, is assembled from the saved pieces of its
/// logical tensor, in any number of shards and however it was cut: every part of that logical name, and every whole
/// tensor of that name. Of pieces with the same position and shape one is taken, preferred as above. The name of a
/// wanted part does not matter then.
///
/// InvalidArgument lists the mismatches with expected and found values (the first few, and how many more): a piece with
/// another dtype or global shape; pieces that overlap without being equal; a region that no piece covers, even with
/// allow_missing; a pattern that matches nothing; names tied in the table but saved as different tensors.
[[nodiscard]] Result<MatchedTensors> MatchTensors(std::span<const SavedShard> shards, std::uint64_t rank,
                                                  const TensorTable& table, const RestoreOptions& options);

}  // namespace cairn
