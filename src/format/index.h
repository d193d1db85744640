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

// The index of a checkpoint: which shards hold pieces of which logical tensor. It is a hint. Whoever uses it opens the
// shards that it names, and their headers decide; where it is missing, damaged or wrong, all headers do.

/// Pieces of one logical tensor at regular distances: piece k (of `count`) is in shard `shard + k * shard_step`
/// (position in the manifest's shards), and begins at `offset` with k * `offset_step` added in dimension `along`. A
/// whole tensor has no dimensions here. Steps are 0 where there is one piece; `shard_step` is at least 1 where there
/// are more, `offset_step` is never negative, and 0 for replicas.
struct IndexPieces {
  std::uint32_t shard = 0;
  std::uint32_t count = 1;
  std::uint32_t shard_step = 0;
  std::uint32_t along = 0;
  std::int64_t offset_step = 0;
  std::vector<std::int64_t> offset, shape;
  friend bool operator==(const IndexPieces&, const IndexPieces&) = default;
};

/// What one shard adds: its names and pieces, sorted, compact. A tensor that is a part counts under the name of its
/// whole, any other under its own; an alias under its own, with the box of the tensor that it stands for. A shard that
/// an index cannot hold (a name above 4,096 bytes, more than 64 dimensions, a part that ends beyond 2^62) gives an
/// empty run, of which BuildIndex makes none.
[[nodiscard]] std::string EncodeIndexRun(const ShardHeader& header);

/// The file is `bytes`; the other two go into the manifest.
struct BuiltIndex {
  std::string bytes;
  std::uint64_t head_bytes = 0;
  std::uint32_t head_digest = 0;
};
/// `runs[i]` is the run of the manifest's shard i. None where the index would pass kMaxIndexBytes, and where a run is
/// not one that EncodeIndexRun makes. Takes memory for the index and one name a run.
[[nodiscard]] std::optional<BuiltIndex> BuildIndex(std::span<const std::string> runs);

/// The end of the file: what its blocks begin with, where they lie, and their sums.
class IndexHead {
 public:
  struct Block {
    std::string first_name;
    /// In the file.
    std::uint64_t begin = 0;
    /// At most 1 MiB.
    std::uint64_t length = 0;
    std::uint32_t digest = 0;
  };

  /// Hostile input: the last `index.head` bytes of the file. `shards` is how many the manifest has. Corrupt names the
  /// file, the field, the expected and the found; Unsupported an unknown version. Takes memory for the head's bytes and
  /// 64 for each 4 KiB of the file.
  [[nodiscard]] static Result<IndexHead> Decode(Bytes head, const ManifestIndex& index, std::uint64_t shards,
                                                const std::string& file);

  /// [first, last) of the blocks that may hold pieces of that name. A name's pieces may go over several blocks.
  [[nodiscard]] std::pair<std::size_t, std::size_t> Find(std::string_view name) const;
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }

 private:
  std::vector<Block> blocks_;
};

/// Calls `use` for every entry of the block in order; it returns false to stop. Names come sorted; one that has several
/// entries comes again for each. Views and pieces are valid during the call.
///
/// Hostile input: every shard that pieces name is below `shards`, and no box of theirs ends beyond 2^62 or has more
/// than 2^62 elements. Corrupt names the file, the block, the entry, the expected and the found; entries before that
/// one may have been used.
[[nodiscard]] Status ReadIndexBlock(Bytes block, const IndexHead::Block& which, std::uint64_t shards,
                                    const std::string& file,
                                    const std::function<bool(std::string_view name, const IndexPieces& pieces)>& use);

}  // namespace cairn
