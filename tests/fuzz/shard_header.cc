// Feeds hostile bytes to the reader of shard headers: as a file, as a header's text, and with matching offsets and
// checksums.

#include "format/shard_header.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "format/fields.h"
#include "format/index.h"
#include "fuzz/check.h"
#include "fuzz/repair.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMostData = 64 * kChecksumBlock;

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

void RequireSound(const ShardHeader& header, std::uint64_t file_bytes) {
  std::uint64_t end = 0;
  for (const ShardTensor& tensor : header.tensors) {
    Require(tensor.begin == end, "tensors lie back to back", tensor.name);
    Require(TensorBytes(tensor.dtype, tensor.shape) == tensor.end - tensor.begin, "the size matches the shape",
            tensor.name);
    Require(!tensor.part || PartProblem(tensor.dtype, tensor.shape, *tensor.part).empty(),
            "a part is within its global shape", tensor.name);
    end = tensor.end;
  }
  for (const LongValue& value : header.long_values) {
    Require(value.begin == end && value.end > end, "the texts of long values follow", value.name);
    end = value.end;
  }
  Require(header.file_bytes() == file_bytes, "the last tensor ends where the file does");
  const bool summed = header.cairn && header.checksums;
  Require(header.sums.size() == (summed ? DivideUp(end, kChecksumBlock) : 0), "one checksum for each block");
}

void RequireRoundTrip(ShardHeader header, const std::string& file) {
  // This version's writer does not know keys of later versions.
  std::erase_if(header.metadata, [](const auto& entry) { return entry.first.starts_with("cairn."); });
  Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header);
  Require(writer.ok(), "accepted input can be written", writer.status().message());
  Require(writer->sum_count() == header.sums.size(), "a place for each checksum");
  writer->SetSums(header.sums);
  const Bytes bytes = AsBytes(writer->bytes());
  Require(writer->digest() == Crc32c(bytes), "the digest is that of all bytes");
  header.data_begin = writer->data_begin();
  const Result<ShardHeader> again = DecodeShardHeader(bytes, header.file_bytes(), file);
  Require(again.ok() && *again == header, "accepted input round-trips", again.status().message());
  // Minus zero equals zero, but the bits differ.
  Require(EncodeValues(again->values) == EncodeValues(header.values), "values keep their bits");
}

// If an index can hold the shard, it must have each of its names.
void RequireIndexed(const ShardHeader& header, const std::string& file) {
  const std::vector<std::string> runs{EncodeIndexRun(header)};
  const auto built = BuildIndex(runs);
  Require(built.has_value() == !runs[0].empty(), "a shard that gives a run can be indexed");
  if (!built) return;
  const Bytes bytes = AsBytes(built->bytes);
  const ManifestIndex index{.length = bytes.size(), .head = built->head_bytes, .digest = built->head_digest};
  const Result<IndexHead> head = IndexHead::Decode(bytes.last(index.head), index, runs.size(), file);
  Require(head.ok(), "an index that was built can be read", head.status().message());
  std::set<std::string, std::less<>> names;
  for (const IndexHead::Block& block : head->blocks()) {
    const Status read = ReadIndexBlock(bytes.subspan(block.begin, block.length), block, runs.size(), file,
                                       [&names](std::string_view name, const IndexPieces&) {
                                         names.emplace(name);
                                         return true;
                                       });
    Require(read.ok(), "an index that was built can be read", read.message());
  }
  for (const ShardTensor& tensor : header.tensors) {
    Require(names.contains(tensor.part ? tensor.part->logical_name : tensor.name), "every tensor is in the index",
            tensor.name);
  }
  for (const auto& [alias, holder] : header.aliases)
    Require(names.contains(alias), "every alias is in the index", alias);
}

void Read(Bytes bytes, std::uint64_t data_bytes) {
  const std::string file = "step/shard-00000.safetensors";
  const Result<ShardHeader> read = DecodeShardHeader(bytes, bytes.size() + data_bytes, file);
  if (!read.ok()) return RequireRefusal(read.status(), file);
  RequireSound(*read, bytes.size() + data_bytes);
  RequireRoundTrip(*read, file);
  RequireIndexed(*read, file);
}

// Like restore: a file whose length word gives the header's size.
void ReadFile(Bytes bytes) {
  const std::string file = "x.safetensors";
  const Result<std::uint64_t> length = ShardHeaderLength(bytes, bytes.size(), file);
  if (!length.ok()) return RequireRefusal(length.status(), file);
  Require(*length <= bytes.size(), "a header ends within its file");
  Read(bytes.first(*length), bytes.size() - *length);
}

}  // namespace
}  // namespace cairn

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  cairn::ReadFile(cairn::AsBytes(text));
  std::string repaired(text);
  cairn::Read(cairn::AsBytes(cairn::HeaderBytes(text)), cairn::LayOutTensors(repaired, 0));
  const std::uint64_t data_bytes = std::min(cairn::LayOutTensors(repaired, cairn::kMostData), cairn::kMostData);
  cairn::FillSums(repaired, std::vector<std::uint32_t>(cairn::DivideUp(data_bytes, cairn::kChecksumBlock), 0x600df00d));
  cairn::Read(cairn::AsBytes(cairn::HeaderBytes(repaired)), data_bytes);
  return 0;
}
