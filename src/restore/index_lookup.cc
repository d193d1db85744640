#include "restore/index_lookup.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "format/fields.h"
#include "format/index.h"
#include "io/io_task.h"
#include "restore/reshard.h"

namespace cairn {
namespace {

// How many blocks are read at once.
constexpr std::size_t kLanes = 8;
// Memory limit for the pieces found, so that a hostile index cannot use up all memory. If more is needed, all headers
// are read instead.
constexpr std::size_t kMaxFoundBytes = 256U << 20;

/// The range of pieces that the box needs; empty if first > last.
struct Span {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

Span Touched(const IndexPieces& pieces, const Box& box) {
  const Span all{0, pieces.count - 1};
  const Span none{1, 0};
  if (pieces.shape.empty()) return all;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    const bool varies = pieces.count > 1 && pieces.offset_step > 0 && d == pieces.along;
    if (!varies && (pieces.offset[d] >= box.end[d] || pieces.offset[d] + pieces.shape[d] <= box.begin[d])) return none;
  }
  if (pieces.count == 1 || pieces.offset_step == 0) return all;
  // Piece k covers [offset + k * step, offset + k * step + extent) in that dimension.
  const std::int64_t offset = pieces.offset[pieces.along];
  const std::int64_t end = offset + pieces.shape[pieces.along];
  const std::int64_t before = box.begin[pieces.along] - end;  // Distance from the end of piece 0 to the box.
  const std::int64_t until = box.end[pieces.along] - 1 - offset;
  if (until < 0) return none;
  const std::int64_t first = before < 0 ? 0 : before / pieces.offset_step + 1;
  const std::int64_t last = std::min<std::int64_t>(until / pieces.offset_step, pieces.count - 1);
  if (first > last) return none;
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)};
}

/// The boxes that are wanted of each logical name, and the pieces found for them. A name without a box takes any piece.
class WantedPieces {
 public:
  explicit WantedPieces(std::span<const std::string_view> names) {
    for (const std::string_view name : names) wanted_[name];
  }
  WantedPieces(std::span<const std::uint32_t> own, std::span<const TensorEntry* const> wanted)
      : own_(own.begin(), own.end()) {
    for (const TensorEntry* entry : wanted) {
      WantedPiece& piece = wanted_[entry->part ? std::string_view(entry->part->logical_name) : entry->name];
      piece.boxes.push_back(BoxOf(entry->shape, entry->part));
    }
  }
  [[nodiscard]] auto begin() const { return wanted_.begin(); }
  [[nodiscard]] auto end() const { return wanted_.end(); }

  /// False if the index cannot be used.
  bool Take(std::string_view name, const IndexPieces& pieces) {
    const auto found = wanted_.find(name);
    if (found == wanted_.end()) return true;
    WantedPiece& piece = found->second;
    piece.named = true;
    if (piece.boxes.empty()) Found(piece, {}, pieces, 0, 1);
    for (const Box& box : piece.boxes) {
      if (!pieces.shape.empty() && pieces.shape.size() != box.begin.size()) {
        refusal_ = "a piece with other dimensions than wanted";
        return false;
      }
      if (box.empty()) {
        Found(piece, {}, pieces, 0, 1);  // Any piece shows that the tensor exists.
        continue;
      }
      const Span span = Touched(pieces, box);
      if (pieces.offset_step == 0) {
        if (span.first <= span.last) Found(piece, {pieces.offset, pieces.shape}, pieces, 0, pieces.count);
        continue;
      }
      for (std::uint32_t k = span.first; k <= span.last; ++k) {
        Place place{pieces.offset, pieces.shape};
        place.offset[pieces.along] += k * pieces.offset_step;
        Found(piece, std::move(place), pieces, k, 1);
        if (found_bytes_ > kMaxFoundBytes) {
          refusal_ = "more pieces than the memory limit allows";
          return false;
        }
      }
    }
    return true;
  }

  /// NotFound if the index does not contain one of the names.
  [[nodiscard]] Result<std::vector<std::uint32_t>> Shards(const std::string& file) const {
    std::set<std::uint32_t> shards;
    if (refusal_ != nullptr) return Error(StatusCode::kUnsupported, "{}: found {}", file, refusal_);
    for (const auto& [name, piece] : wanted_) {
      if (!piece.named) return Error(StatusCode::kNotFound, "{} does not name {}", file, Quoted(name));
      for (const auto& [place, holder] : piece.holders) {
        if (!holder.own) shards.insert(holder.lowest);
      }
    }
    return std::vector(shards.begin(), shards.end());
  }

 private:
  struct Place {
    std::vector<std::int64_t> offset, shape;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  /// Of replicas, this rank's own is read, or else the lowest shard's, like a restore with all headers.
  struct Holder {
    bool own = false;
    std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
  };
  struct WantedPiece {
    std::vector<Box> boxes;
    bool named = false;
    std::map<Place, Holder> holders;
  };

  /// The pieces [first, first + count) are replicas at that place.
  void Found(WantedPiece& piece, Place place, const IndexPieces& pieces, std::uint32_t first, std::uint32_t count) {
    const std::size_t bytes = sizeof(Place) + sizeof(Holder) + 2 * place.shape.size() * sizeof(std::int64_t);
    const auto [at, fresh] = piece.holders.try_emplace(std::move(place));
    if (fresh) found_bytes_ += bytes;
    const std::uint32_t shard = pieces.shard + first * pieces.shard_step;
    at->second.lowest = std::min(at->second.lowest, shard);
    for (const std::uint32_t own : own_) {
      if (own < shard) continue;
      const std::uint32_t behind = own - shard;
      const bool is = count == 1 ? behind == 0 : behind % pieces.shard_step == 0 && behind / pieces.shard_step < count;
      at->second.own = at->second.own || is;
    }
  }

  const std::vector<std::uint32_t> own_;
  std::map<std::string_view, WantedPiece> wanted_;
  std::size_t found_bytes_ = 0;
  const char* refusal_ = nullptr;
};

struct Lookup {
  const StoredCheckpoint& checkpoint;
  const ManifestIndex& index;
  const PathAt path;
  WantedPieces& wanted;
  UniqueFd fd = {};
  std::vector<IndexHead::Block> blocks = {};
  std::size_t next = 0;
  Status failure = {};
};

IoTask<Status> ReadPart(Lookup& lookup, std::uint64_t offset, std::string& into) {
  std::size_t filled = 0;
  for (int retries = 0; filled < into.size();) {
    IoResult read = co_await io::ReadAt(lookup.fd, lookup.path.text(), into, filled, offset + filled);
    const bool interrupted = read.error == EINTR || read.error == EAGAIN;
    if (interrupted && ++retries <= kMaxRetries) continue;
    if (!read.ok()) co_return read.status;
    if (read.value == 0) {
      co_return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found its end at {}", lookup.path,
                      lookup.index.length, offset + filled);
    }
    retries = 0;
    filled += static_cast<std::size_t>(read.value);
  }
  co_return Status::Ok();
}

IoTask<Status> BlockLane(Lookup& lookup) {
  std::string bytes;
  while (lookup.next < lookup.blocks.size() && lookup.failure.ok()) {
    const IndexHead::Block& block = lookup.blocks[lookup.next++];
    bytes.resize(block.length);
    Status status = co_await ReadPart(lookup, block.begin, bytes);
    if (status.ok()) {
      status = ReadIndexBlock(
          std::as_bytes(std::span(bytes)), block, lookup.checkpoint.manifest.shards.size(), lookup.path.text(),
          [&](std::string_view name, const IndexPieces& pieces) { return lookup.wanted.Take(name, pieces); });
    }
    if (!status.ok()) lookup.failure = std::move(status);
  }
  co_return Status::Ok();
}

Status CheckFile(const Lookup& lookup) {
  struct stat found {};
  if (::fstat(lookup.fd.get(), &found) != 0) return ReadErrnoStatus(errno, "stat of " + lookup.path.text());
  if (S_ISREG(found.st_mode) && static_cast<std::uint64_t>(found.st_size) == lookup.index.length) {
    // Otherwise io_uring may return EAGAIN for data outside the page cache.
    const int flags = ::fcntl(lookup.fd.get(), F_GETFL);
    if (flags >= 0 && ::fcntl(lookup.fd.get(), F_SETFL, flags & ~O_NONBLOCK) == 0) return Status::Ok();
    return ErrnoStatus(errno, "fcntl of " + lookup.path.text());
  }
  return Error(StatusCode::kCorrupt, "{}: expected a regular file of {} bytes, found {}", lookup.path,
               lookup.index.length, found.st_size);
}

IoTask<Status> LookUpTask(Lookup& lookup) {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Open(lookup.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, lookup.fd));
  CAIRN_CO_RETURN_IF_ERROR(CheckFile(lookup));
  std::string bytes(lookup.index.head, '\0');
  CAIRN_CO_RETURN_IF_ERROR(co_await ReadPart(lookup, lookup.index.length - lookup.index.head, bytes));
  const Result<IndexHead> head = IndexHead::Decode(std::as_bytes(std::span(bytes)), lookup.index,
                                                   lookup.checkpoint.manifest.shards.size(), lookup.path.text());
  CAIRN_CO_RETURN_IF_ERROR(head.status());
  std::set<std::size_t> wanted;
  for (const auto& [name, piece] : lookup.wanted) {
    const auto [first, last] = head->Find(name);
    for (std::size_t block = first; block < last; ++block) wanted.insert(block);
  }
  for (const std::size_t block : wanted) lookup.blocks.push_back(head->blocks()[block]);
  std::vector<IoTask<Status>> lanes;
  for (std::size_t i = 0; i < std::min(kLanes, lookup.blocks.size()); ++i) lanes.push_back(BlockLane(lookup));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(lanes)));
  co_return lookup.failure;
}

Result<std::vector<std::uint32_t>> LookUp(IoQueue& queue, const StoredCheckpoint& checkpoint, WantedPieces wanted) {
  const std::optional<ManifestIndex>& index = checkpoint.manifest.index;
  if (!index) return Error(StatusCode::kNotFound, "{} has no index", checkpoint.info.path);
  Lookup lookup{
      .checkpoint = checkpoint, .index = *index, .path = checkpoint.info.path + "/" + index->file, .wanted = wanted};
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, LookUpTask(lookup)));
  return wanted.Shards(lookup.path.text());
}

}  // namespace

Result<std::vector<std::uint32_t>> LookUpIndex(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                               std::span<const std::uint32_t> own,
                                               std::span<const TensorEntry* const> wanted) {
  return LookUp(queue, checkpoint, WantedPieces(own, wanted));
}

Result<std::vector<std::uint32_t>> LookUpIndex(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                               std::span<const std::string_view> names) {
  return LookUp(queue, checkpoint, WantedPieces(names));
}

}  // namespace cairn
