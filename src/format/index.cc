#include "format/index.h"

#include <algorithm>
#include <limits>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "format/fields.h"
#include "format/index_bytes.h"

namespace cairn {
namespace {

// The smallest size in the head of a block's entry: first name, length and digest.
constexpr std::size_t kMinHeadEntryBytes = 6;

// Reads one block's entries. Every function returns whether to continue; if not, status() has the error.
class BlockReader {
 public:
  BlockReader(Bytes block, const IndexHead::Block& which, std::uint64_t shards, const std::string& file)
      : bytes_(block), which_(which), shards_(std::min<std::uint64_t>(shards, std::uint64_t{1} << 32)), file_(file) {}

  [[nodiscard]] bool at_end() const { return bytes_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const IndexPieces& pieces() const { return pieces_; }
  [[nodiscard]] const Status& status() const { return status_; }

  bool Next() {
    if (!ReadNextName(bytes_, name_)) {
      return Fail("name", fmt::format("at most {} bytes that sort after {}", kMaxIndexNameBytes, Quoted(name_)),
                  "other bytes");
    }
    if (entry_ == 0 && name_ != which_.first_name) {
      return Fail("name", Quoted(which_.first_name) + " as in the head", Quoted(name_));
    }
    if (!TakePieces()) return false;
    ++entry_;
    return true;
  }

 private:
  bool TakePieces() {
    std::uint64_t form = 0;
    std::uint64_t shard = 0;
    if (!Take("form", 2 * kMaxIndexDimensions + 1, form) || !TakeShard(shard)) return false;
    const std::size_t dimensions = form / 2;
    pieces_.shard = static_cast<std::uint32_t>(shard);
    pieces_.count = 1;
    pieces_.shard_step = 0;
    pieces_.along = 0;
    pieces_.offset_step = 0;
    if (form % 2 != 0 && !TakeSteps(shard, dimensions)) return false;
    if (!TakeList("offset", dimensions, pieces_.offset) || !TakeList("shape", dimensions, pieces_.shape)) return false;
    return CheckBoxes();
  }

  bool TakeShard(std::uint64_t& shard) {
    if (!Take("shard", std::numeric_limits<std::uint64_t>::max(), shard)) return false;
    return shard < shards_ || Fail("shard", fmt::format("below {}", shards_), std::to_string(shard));
  }

  bool TakeSteps(std::uint64_t shard, std::size_t dimensions) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    std::uint64_t count = 0;
    std::uint64_t step = 0;
    if (!Take("count", kMost, count) || !Take("shard step", kMost, step)) return false;
    if (count < 2) return Fail("count", "at least 2", std::to_string(count));
    if (step < 1) return Fail("shard step", "at least 1", "0");
    // Both are below 2^32.
    if ((count - 1) * step > shards_ - 1 - shard) {
      return Fail("count", fmt::format("shards below {}", shards_),
                  fmt::format("{} of them from {} in steps of {}", count, shard, step));
    }
    pieces_.count = static_cast<std::uint32_t>(count);
    pieces_.shard_step = static_cast<std::uint32_t>(step);
    if (dimensions == 0) return true;
    std::uint64_t along = 0;
    std::uint64_t offset_step = 0;
    if (!Take("along", dimensions - 1, along) || !Take("offset step", kMaxIndexExtent, offset_step)) return false;
    pieces_.along = static_cast<std::uint32_t>(along);
    pieces_.offset_step = static_cast<std::int64_t>(offset_step);
    return true;
  }

  bool TakeList(std::string_view field, std::size_t dimensions, std::vector<std::int64_t>& list) {
    list.clear();
    for (std::size_t d = 0; d < dimensions; ++d) {
      std::uint64_t number = 0;
      if (!Take(field, kMaxIndexExtent, number)) return false;
      list.push_back(static_cast<std::int64_t>(number));
    }
    return true;
  }

  // Checks the boxes of the first and the last piece, which enclose the others.
  bool CheckBoxes() {
    if (const auto problem = BoxProblem(pieces_.offset, pieces_.shape); !problem.empty()) return Fail(problem);
    if (pieces_.offset_step == 0) return true;
    const auto end = static_cast<std::uint64_t>(pieces_.offset[pieces_.along] + pieces_.shape[pieces_.along]);
    if (static_cast<std::uint64_t>(pieces_.offset_step) > (kMaxIndexExtent - end) / (pieces_.count - 1)) {
      return Fail("offset step", "pieces that end at most at 2^62",
                  fmt::format("{} in steps of {} from {}", pieces_.count, pieces_.offset_step, Listed(pieces_.offset)));
    }
    return true;
  }

  bool Take(std::string_view field, std::uint64_t most, std::uint64_t& to) {
    const auto number = bytes_.Number();
    if (!number) return Fail(field, "a number", "none");
    if (*number > most) return Fail(field, fmt::format("at most {}", most), std::to_string(*number));
    to = *number;
    return true;
  }

  bool Fail(std::string_view field, const std::string& expected, const std::string& found) {
    return Fail(fmt::format("{}: expected {}, found {}", field, expected, found));
  }
  bool Fail(const std::string& problem) {
    status_ = Error(StatusCode::kCorrupt, "{}: block at {}: entry {}: {}", file_, which_.begin, entry_, problem);
    return false;
  }

  IndexByteReader bytes_;
  const IndexHead::Block& which_;
  const std::uint64_t shards_;
  const std::string& file_;
  std::uint64_t entry_ = 0;
  std::string name_;
  IndexPieces pieces_;
  Status status_;
};

Status CheckDigest(Bytes bytes, std::uint64_t length, std::uint32_t digest, const std::string& where) {
  if (bytes.size() != length) {
    return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", where, length, bytes.size());
  }
  if (const std::uint32_t found = Crc32c(bytes); found != digest) {
    return Error(StatusCode::kCorrupt, "{}: digest: expected {:08x}, computed {:08x}", where, digest, found);
  }
  return Status::Ok();
}

Status ReadBlocks(IndexByteReader& bytes, std::uint64_t count, std::vector<IndexHead::Block>& blocks,
                  const std::string& file) {
  std::uint64_t begin = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto name_length = bytes.Number();
    const auto name = name_length && *name_length <= kMaxIndexNameBytes ? bytes.Text(*name_length) : std::nullopt;
    if (!name) {
      return Error(StatusCode::kCorrupt, "{}: head: block {}: expected a name of at most {} bytes, found none", file, i,
                   kMaxIndexNameBytes);
    }
    if (i != 0 && *name < blocks.back().first_name) {
      return Error(StatusCode::kCorrupt, "{}: head: block {}: name: expected {} or a later one, found {}", file, i,
                   Quoted(blocks.back().first_name), Quoted(*name));
    }
    const auto length = bytes.Number();
    const std::uint64_t least = i + 1 == count ? 1 : kMinIndexBlockBytes;
    if (!length || *length < least || *length > kMaxIndexBlockBytes) {
      return Error(StatusCode::kCorrupt, "{}: head: block {}: length: expected {} to {}, found {}", file, i, least,
                   kMaxIndexBlockBytes, length ? std::to_string(*length) : "none");
    }
    const auto digest = bytes.Word();
    if (!digest)
      return Error(StatusCode::kCorrupt, "{}: head: block {}: digest: expected 4 bytes, found none", file, i);
    blocks.push_back({.first_name = std::string(*name), .begin = begin, .length = *length, .digest = *digest});
    begin += *length;
  }
  return Status::Ok();
}

}  // namespace

Result<IndexHead> IndexHead::Decode(Bytes head, const ManifestIndex& index, std::uint64_t shards,
                                    const std::string& file) {
  CAIRN_RETURN_IF_ERROR(CheckDigest(head, index.head, index.digest, file + ": head"));
  IndexByteReader bytes(head);
  if (const auto version = bytes.Number(); version != kIndexVersion) {
    return Error(StatusCode::kUnsupported, "{}: version: expected {}, found {}", file, kIndexVersion,
                 version ? std::to_string(*version) : "none");
  }
  if (const auto found = bytes.Number(); found != shards) {
    return Error(StatusCode::kCorrupt, "{}: head: shards: expected {} as in the manifest, found {}", file, shards,
                 found ? std::to_string(*found) : "none");
  }
  const auto count = bytes.Number();
  const std::uint64_t most =
      std::min<std::uint64_t>(head.size() / kMinHeadEntryBytes, index.length / kMinIndexBlockBytes + 1);
  if (!count || *count > most) {
    return Error(StatusCode::kCorrupt, "{}: head: blocks: expected at most {}, found {}", file, most,
                 count ? std::to_string(*count) : "none");
  }
  IndexHead decoded;
  decoded.blocks_.reserve(*count);
  CAIRN_RETURN_IF_ERROR(ReadBlocks(bytes, *count, decoded.blocks_, file));
  if (!bytes.empty()) {
    return Error(StatusCode::kCorrupt, "{}: head: expected its end after the last block, found more bytes", file);
  }
  const std::uint64_t blocks_end = *count == 0 ? 0 : decoded.blocks_.back().begin + decoded.blocks_.back().length;
  if (blocks_end + head.size() != index.length) {
    return Error(StatusCode::kCorrupt, "{}: blocks and head: expected {} bytes as in the manifest, found {}", file,
                 index.length, blocks_end + head.size());
  }
  return decoded;
}

std::pair<std::size_t, std::size_t> IndexHead::Find(std::string_view name) const {
  const auto before = [](const Block& block, std::string_view n) { return block.first_name < n; };
  const auto after = [](std::string_view n, const Block& block) { return n < block.first_name; };
  const auto first = std::lower_bound(blocks_.begin(), blocks_.end(), name, before);
  const auto last = std::upper_bound(first, blocks_.end(), name, after);
  const auto at = static_cast<std::size_t>(first - blocks_.begin());
  // The previous block may end with pieces of that name.
  return {at == 0 ? 0 : at - 1, static_cast<std::size_t>(last - blocks_.begin())};
}

Status ReadIndexBlock(Bytes block, const IndexHead::Block& which, std::uint64_t shards, const std::string& file,
                      const std::function<bool(std::string_view name, const IndexPieces& pieces)>& use) {
  CAIRN_RETURN_IF_ERROR(
      CheckDigest(block, which.length, which.digest, fmt::format("{}: block at {}", file, which.begin)));
  BlockReader reader(block, which, shards, file);
  while (!reader.at_end()) {
    if (!reader.Next()) return reader.status();
    if (!use(reader.name(), reader.pieces())) break;
  }
  return Status::Ok();
}

}  // namespace cairn
