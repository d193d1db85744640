// The reader of shard headers on hostile bytes: as a file, as the text of a header, and with offsets and sums to match.

#include "format/shard_header.h"

#include <algorithm>
#include <span>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "format/fields.h"
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
    Require(TensorBytes(tensor.dtype, tensor.shape) == tensor.end - tensor.begin, "a size is its shape's", tensor.name);
    Require(!tensor.part || PartProblem(tensor.dtype, tensor.shape, *tensor.part).empty(), "a part lies in its whole",
            tensor.name);
    end = tensor.end;
  }
  Require(header.file_bytes() == file_bytes, "the last tensor ends where the file does");
  const bool summed = header.cairn && header.checksums;
  Require(header.sums.size() == (summed ? DivideUp(end, kChecksumBlock) : 0), "one sum a block");
}

void RequireRoundTrip(ShardHeader header, const std::string& file) {
  // Of keys that later versions add a writer of this one knows nothing.
  std::erase_if(header.metadata, [](const auto& entry) { return entry.first.starts_with("cairn."); });
  Result<ShardHeaderWriter> writer = ShardHeaderWriter::Make(header);
  Require(writer.ok(), "what was accepted can be written", writer.status().message());
  Require(writer->sum_count() == header.sums.size(), "a place for each sum");
  writer->SetSums(header.sums);
  const Bytes bytes = AsBytes(writer->bytes());
  Require(writer->digest() == Crc32c(bytes), "the digest is that of all bytes");
  header.data_begin = writer->data_begin();
  const Result<ShardHeader> again = DecodeShardHeader(bytes, header.file_bytes(), file);
  Require(again.ok() && *again == header, "what was accepted comes back", again.status().message());
  // Minus zero equals zero; their bits do not.
  Require(EncodeValues(again->values) == EncodeValues(header.values), "values come back bit by bit");
}

void Read(Bytes bytes, std::uint64_t data_bytes) {
  const std::string file = "step/shard-00000.safetensors";
  const Result<ShardHeader> read = DecodeShardHeader(bytes, bytes.size() + data_bytes, file);
  if (!read.ok()) return RequireRefusal(read.status(), file);
  RequireSound(*read, bytes.size() + data_bytes);
  RequireRoundTrip(*read, file);
}

// As restore meets it: a file whose length word says how much of it is header.
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
