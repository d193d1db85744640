#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cairn/status.h"
#include "format/manifest.h"
#include "format/shard_header.h"

namespace cairn {

// The index of a checkpoint: which shards hold pieces of which logical tensor. It is only a hint: readers open the
// shards that it names and trust their headers. If it is missing, damaged or wrong, they read all headers.

/// Pieces of one logical tensor at regular distances. Piece k (of `count`) is in shard `shard + k * shard_step`
/// (position in the manifest's shards) and begins at `offset` with k * `offset_step` added in dimension `along`. A
/// whole tensor has no dimensions here. A single piece has steps of 0. With more pieces, `shard_step` is at least 1,
/// and `offset_step` is 0 for replicas and never negative.
struct IndexPieces {
  std::uint32_t shard = 0;
  std::uint32_t count = 1;
  std::uint32_t shard_step = 0;
  std::uint32_t along = 0;
  std::int64_t offset_step = 0;
  std::vector<std::int64_t> offset, shape;
  friend bool operator==(const IndexPieces&, const IndexPieces&) = default;
};

/// One shard's sorted names and pieces. A part is listed under its logical name, any other tensor under its own name,
/// and an alias under its own name with the box of the tensor that it is tied to. A shard that an index cannot hold (a
/// name above 4,096 bytes, more than 64 dimensions, a part that ends beyond 2^62) gives an empty run, from which
/// BuildIndex makes no index.
[[nodiscard]] std::string EncodeIndexRun(const ShardHeader& header);

/// `bytes` is the file's contents. The other two go into the manifest.
struct BuiltIndex {
  std::string bytes;
  std::uint64_t head_bytes = 0;
  std::uint32_t head_digest = 0;
};
/// `runs[i]` is the run of the manifest's shard i. None if the index would exceed kMaxIndexBytes, or if a run is not
/// one of EncodeIndexRun. Needs memory for the index and one name for each run.
[[nodiscard]] std::optional<BuiltIndex> BuildIndex(std::span<const std::string> runs);

/// The end of the file: each block's first name, position and checksum.
class IndexHead {
 public:
  struct Block {
    std::string first_name;
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
    std::uint32_t digest = 0;
  };

  /// Decodes the last `index.head` bytes of the file, which may be hostile. `shards` is how many the manifest has.
  /// Corrupt names the file, the field, the expected and the found value; Unsupported names an unknown version. Needs
  /// memory for the head and 64 bytes for each 4 KiB of the file.
  [[nodiscard]] static Result<IndexHead> Decode(Bytes head, const ManifestIndex& index, std::uint64_t shards,
                                                const std::string& file);

  /// The range [first, last) of blocks that may hold pieces of that name, which may span several blocks.
  [[nodiscard]] std::pair<std::size_t, std::size_t> Find(std::string_view name) const;
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }

 private:
  std::vector<Block> blocks_;
};

/// Calls `use` for every entry of the block in order, until it returns false. Names are sorted, and repeated for each
/// entry of a name. Views and pieces are valid during the call.
///
/// The block may be hostile: every entry is checked to have shards below `shards`, and boxes that end at most at 2^62
/// and have at most 2^62 elements. Corrupt names the file, the block, the entry, the expected and the found value;
/// `use` may have been called for earlier entries.
[[nodiscard]] Status ReadIndexBlock(Bytes block, const IndexHead::Block& which, std::uint64_t shards,
                                    const std::string& file,
                                    const std::function<bool(std::string_view name, const IndexPieces& pieces)>& use);

}  // namespace cairn
