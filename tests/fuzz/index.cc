// Feeds hostile bytes to the index's readers: as a head, as a block, and as ranks' runs to build one from. Digests are
// made valid, and so are lengths if the head can be read that far.

#include "format/index.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/crc32c.h"
#include "format/fields.h"
#include "format/index_bytes.h"
#include "fuzz/check.h"
#include "fuzz/repair.h"

namespace cairn {
namespace {

const std::string kFile = "step/index.cairn";
constexpr std::uint64_t kShards = 300;

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// The sum of the blocks' lengths in the head, as far as it can be read.
std::uint64_t BlockLengths(Bytes head) {
  IndexByteReader bytes(head);
  std::uint64_t sum = 0;
  if (!bytes.Number() || !bytes.Number()) return sum;
  for (std::uint64_t left = bytes.Number().value_or(0); left > 0; --left) {
    const auto name = bytes.Number();
    if (!name || !bytes.Text(*name)) return sum;
    const auto length = bytes.Number();
    if (!length || !bytes.Word()) return sum;
    sum += *length;
  }
  return sum;
}

void RequireFinds(const IndexHead& head, std::string_view name) {
  const auto [first, last] = head.Find(name);
  Require(first <= last && last <= head.blocks().size(), "blocks that may hold a name exist");
  for (std::size_t i = 0; i < head.blocks().size(); ++i) {
    const bool behind_its_begin = head.blocks()[i].first_name <= name;
    const bool before_the_next = i + 1 == head.blocks().size() || name <= head.blocks()[i + 1].first_name;
    Require((behind_its_begin && before_the_next) <= (first <= i && i < last),
            "no block that may hold a name is left out");
  }
}

void ReadHead(Bytes bytes) {
  // The number of shards follows the version.
  IndexByteReader numbers(bytes);
  const std::uint64_t shards = numbers.Number() ? numbers.Number().value_or(0) : 0;
  const ManifestIndex index{
      .length = bytes.size() + BlockLengths(bytes), .head = bytes.size(), .digest = Crc32c(bytes)};
  const Result<IndexHead> head = IndexHead::Decode(bytes, index, shards, kFile);
  if (!head.ok()) return RequireRefusal(head.status(), kFile);

  std::uint64_t end = 0;
  for (std::size_t i = 0; i < head->blocks().size(); ++i) {
    const IndexHead::Block& block = head->blocks()[i];
    Require(block.begin == end && block.length > 0 && block.length <= kMaxIndexBlockBytes, "blocks lie back to back");
    Require(i == 0 || head->blocks()[i - 1].first_name <= block.first_name, "blocks are sorted");
    RequireFinds(*head, block.first_name);
    RequireFinds(*head, block.first_name + "x");
    end += block.length;
  }
  RequireFinds(*head, "");
  Require(end + bytes.size() == index.length, "blocks and head make the file");
}

void RequireSound(const IndexPieces& pieces, std::uint64_t shards) {
  Require(pieces.count >= 1 && (pieces.count == 1) == (pieces.shard_step == 0), "several pieces have a step");
  Require(pieces.shard + std::uint64_t{pieces.count - 1} * pieces.shard_step < shards, "every shard exists");
  Require(pieces.offset.size() == pieces.shape.size() && pieces.shape.size() <= kMaxIndexDimensions,
          "dimensions are bounded");
  Require(pieces.offset_step >= 0 && (pieces.offset_step == 0 || pieces.along < pieces.shape.size()),
          "pieces advance along an existing dimension");
  for (std::size_t d = 0; d < pieces.shape.size(); ++d) {
    Require(pieces.offset[d] >= 0 && pieces.shape[d] >= 0, "boxes have no negative numbers");
    std::int64_t end = 0;
    std::int64_t reach = 0;
    const bool fits = !__builtin_mul_overflow(d == pieces.along ? pieces.offset_step : 0, pieces.count - 1, &reach) &&
                      !__builtin_add_overflow(reach, pieces.offset[d], &end) &&
                      !__builtin_add_overflow(end, pieces.shape[d], &end);
    Require(fits && static_cast<std::uint64_t>(end) <= kMaxIndexExtent, "every piece ends within the limit");
  }
  Require(TensorBytes(DType::kU8, pieces.shape).has_value(), "a piece's elements can be counted");
}

// Whether the block could be read to its end.
bool ReadBlock(Bytes bytes, const IndexHead::Block& which, std::uint64_t shards) {
  std::string before;
  const Status read =
      ReadIndexBlock(bytes, which, shards, kFile, [&](std::string_view name, const IndexPieces& pieces) {
        Require(before <= name && name.size() <= kMaxIndexNameBytes, "names are sorted", name);
        before = name;
        RequireSound(pieces, shards);
        return true;
      });
  if (!read.ok()) RequireRefusal(read, kFile);
  return read.ok();
}

void ReadBlockOfAnyName(Bytes bytes, std::uint64_t shards) {
  IndexHead::Block which{.begin = 4096, .length = bytes.size(), .digest = Crc32c(bytes)};
  IndexByteReader first(bytes);
  static_cast<void>(ReadNextName(first, which.first_name));
  ReadBlock(bytes, which, shards);
}

void BuildOf(std::string_view input) {
  std::vector<std::string> runs;
  for (const std::string_view section : Sections(input)) runs.emplace_back(section);
  const auto built = BuildIndex(runs);
  if (!built) return;
  const Bytes bytes = AsBytes(built->bytes);
  const ManifestIndex index{.length = bytes.size(), .head = built->head_bytes, .digest = built->head_digest};
  const Result<IndexHead> head = IndexHead::Decode(bytes.last(built->head_bytes), index, runs.size(), kFile);
  Require(head.ok(), "what was built can be read", head.status().message());
  for (const IndexHead::Block& block : head->blocks()) {
    Require(ReadBlock(bytes.subspan(block.begin, block.length), block, runs.size()), "what was built can be read");
  }
}

}  // namespace
}  // namespace cairn

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const cairn::Bytes bytes = cairn::AsBytes(text);
  cairn::ReadHead(bytes);
  for (const std::uint64_t shards : {cairn::kShards, std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()}) {
    cairn::ReadBlockOfAnyName(bytes, shards);
  }
  cairn::BuildOf(text);
  return 0;
}
