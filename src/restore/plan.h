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

// What to read, as pure functions: saved shards' headers x wanted tensors -> copies -> reads.

/// Whether `name` matches `pattern`: * stands for any text, ? for one character (a UTF-8 code point). A name matches
/// itself, whatever it contains.
[[nodiscard]] bool MatchesPattern(std::string_view pattern, std::string_view name);

/// One shard as the plan sees it.
struct SavedShard {
  std::string file;  ///< For messages.
  /// As DecodeShardHeader returns it. Null where it was not read: then nothing of the shard is found.
  const ShardHeader* header = nullptr;
};

/// Data bytes [begin, end) of a shard, and the logical bytes of a target from `target_begin` on that they go to; or the
/// rows among them (see RowCursor). A target may be put together by many of them, from several shards; no two write the
/// same byte of it.
struct PlannedCopy {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const StridedLayout* target = nullptr;
  std::uint64_t target_begin = 0;
  DeviceId device;
  std::string_view name;  ///< For messages.
  /// The target's memory is another target's too, perhaps: the two must not be written at the same time.
  bool shares_memory = false;
  /// Not null: of [begin, end) only the rows of this shape, in bytes, of which the first one begins at begin - skip and
  /// goes to target_begin. Gaps between rows are shorter than kChecksumBlock.
  const RowShape* rows = nullptr;
  std::uint64_t skip = 0;
};

/// What a state wants of the shards.
struct MatchedTensors {
  std::vector<std::vector<PlannedCopy>> copies;  ///< By shard; layouts point into the table.
  std::deque<RowShape> shapes;                   ///< What copies' rows point to.
  std::vector<std::string> missing;              ///< Wanted and not saved; only with allow_missing.
  std::uint64_t tensors = 0;                     ///< Targets that will be written; tied ones count once.
  std::uint64_t bytes = 0;                       ///< Theirs.
};

/// Finds each wanted tensor (options.names of the table) in the shards, through aliases too.
///
/// First by the same name, dtype, shape and part. Of several shards that hold it, this rank's own comes first, then the
/// lowest. Otherwise a part, and a whole tensor of a name that was not saved whole, is put together from the saved
/// pieces of its logical tensor, in however many shards and however that was cut: every part of that logical name, and
/// every whole tensor of that name. Of pieces with the same place and shape one is taken, chosen as above. The name
/// under which a part is wanted does not matter then.
///
/// InvalidArgument names each mismatch with what was expected and found (the first few, and how many more): a piece
/// whose dtype or global shape is not the wanted one; pieces that overlap without being the same; a region that they do
/// not cover, with allow_missing too; a pattern that matches nothing; names tied in the table that were saved as
/// different tensors.
[[nodiscard]] Result<MatchedTensors> MatchTensors(std::span<const SavedShard> shards, std::uint64_t rank,
                                                  const TensorTable& table, const RestoreOptions& options);

/// One read: data bytes [begin, end) of a shard, at most as many as a chunk holds once widened to whole kBlocks of the
/// file. Where the shard has checksums, begin is a multiple of kChecksumBlock, and so is end but for the data's end.
/// The copies from the first on that begin before its end all reach into it.
struct PlannedRead {
  std::uint32_t shard = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t first_copy = 0;  ///< The first of the shard's copies that reaches into it.
  std::uint64_t file_begin = 0;  ///< What to read of the file, a multiple of kBlock: holds [begin, end).
  std::uint64_t file_bytes = 0;  ///< Multiple of kBlock; may reach beyond the file's end.
  friend bool operator==(const PlannedRead&, const PlannedRead&) = default;
};

/// Cuts what the copies need into reads, in the order of the file; sorts `copies` by begin, and cuts them at the reads'
/// ends where they overlap. `chunk_bytes` is a multiple of kChecksumBlock.
[[nodiscard]] std::vector<PlannedRead> PlanReads(std::uint32_t shard, const ShardHeader& header,
                                                 std::vector<PlannedCopy>& copies, std::uint64_t chunk_bytes);
/// The same for every data byte of the shard.
[[nodiscard]] std::vector<PlannedRead> PlanWholeShard(std::uint32_t shard, const ShardHeader& header,
                                                      std::uint64_t chunk_bytes);

}  // namespace cairn
