#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "base/crc32c.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "base/tensor_table.h"
#include "base/utf8.h"
#include "format/fields.h"
#include "format/name_index.h"
#include "format/shard_header.h"
#include "format/shard_keys.h"

namespace cairn {
namespace {

constexpr std::size_t kSumDigits = 8;
constexpr std::size_t kHugePage = 2U << 20;

// Free it with std::free. A large block uses huge pages, because a write pins each of its pages.
char* AlignedBlock(std::size_t bytes) {
  if (bytes < kHugePage) return static_cast<char*>(std::aligned_alloc(kBlock, bytes));
  const std::size_t length = AlignUp(bytes, kHugePage);
  void* const block = std::aligned_alloc(kHugePage, length);
  if (block != nullptr) ::madvise(block, length, MADV_HUGEPAGE);
  return static_cast<char*>(block);
}

Status CheckTensors(const ShardHeader& header) {
  std::uint64_t end = 0;
  for (const ShardTensor& tensor : header.tensors) {
    const auto invalid = [&tensor](const std::string& what) {
      return Error(StatusCode::kInvalidArgument, "tensor {}: {}", Quoted(tensor.name), what);
    };
    if (tensor.name == kMetadata) return invalid("safetensors reserves this name");
    if (!IsUtf8(tensor.name)) {
      return Error(StatusCode::kInvalidArgument, "a tensor's name is not valid UTF-8: {:?}",
                   std::string_view(tensor.name));
    }
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes) {
      return invalid("expected at most 2^62 bytes, found " + Listed(tensor.shape));
    }
    if (tensor.begin != end || tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
      return invalid(
          fmt::format("expected {} bytes from {}, found offsets [{}, {}]", *bytes, end, tensor.begin, tensor.end));
    }
    end = tensor.end;
    if (!tensor.part) continue;
    if (!IsUtf8(tensor.part->logical_name)) return invalid("its logical name is not valid UTF-8");
    if (const auto problem = PartProblem(tensor.dtype, tensor.shape, *tensor.part); !problem.empty()) {
      return invalid("part: " + problem);
    }
  }
  return Status::Ok();
}

Status CheckLongValues(const ShardHeader& header) {
  const NameIndex index(header.tensors);
  std::uint64_t end = header.tensors.empty() ? 0 : header.tensors.back().end;
  for (const LongValue& value : header.long_values) {
    const bool taken = value.tensor == kMetadata || index.Find(value.tensor) || header.aliases.contains(value.tensor);
    if (taken || !IsUtf8(value.tensor) || value.begin != end || value.end <= value.begin) {
      return Error(StatusCode::kInvalidArgument,
                   "value {}: expected its text in a tensor of its own from {} on, found {:?} from {} to {}",
                   Quoted(value.name), end, std::string_view(value.tensor), value.begin, value.end);
    }
    end = value.end;
  }
  return Status::Ok();
}

Status CheckNames(const ShardHeader& header) {
  const NameIndex index(header.tensors);
  if (const auto duplicate = index.duplicate()) {
    return Error(StatusCode::kInvalidArgument, "tensor {}: expected once, found twice",
                 Quoted(header.tensors[*duplicate].name));
  }
  for (const auto& [name, target] : header.aliases) {
    if (!IsUtf8(name)) {
      return Error(StatusCode::kInvalidArgument, "an alias's name is not valid UTF-8: {:?}", std::string_view(name));
    }
    if (name == kMetadata || index.Find(name)) {
      return Error(StatusCode::kInvalidArgument, "alias {}: expected a new name, found that of a tensor", Quoted(name));
    }
    if (!index.Find(target)) {
      return Error(StatusCode::kInvalidArgument, "alias {}: expected the name of a tensor in the shard, found {}",
                   Quoted(name), Quoted(target));
    }
  }
  return Status::Ok();
}

Status CheckMetadata(const ShardHeader& header) {
  for (const auto& [key, value] : header.metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return Error(StatusCode::kInvalidArgument, "metadata {:?}: not valid UTF-8", std::string_view(key));
    }
    if (key.starts_with(kCairnPrefix)) {
      return Error(StatusCode::kInvalidArgument, "metadata {}: keys that begin with cairn. are reserved", Quoted(key));
    }
  }
  if (header.cairn && !IsAttemptId(header.attempt)) {
    return Error(StatusCode::kInvalidArgument, "attempt {:?}: expected 1 to 64 letters, digits, '-' or '_'",
                 std::string_view(header.attempt));
  }
  return Status::Ok();
}

void AppendList(std::string& out, const std::vector<std::int64_t>& list) {
  out += '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i != 0) out += ',';
    AppendDecimal(out, static_cast<std::uint64_t>(list[i]));
  }
  out += ']';
}

std::string PartsJson(const std::vector<ShardTensor>& tensors) {
  std::string out;
  for (const ShardTensor& tensor : tensors) {
    if (!tensor.part) continue;
    out += out.empty() ? '{' : ',';
    AppendJsonString(out, tensor.name);
    out += ":{\"name\":";
    AppendJsonString(out, tensor.part->logical_name);
    out += ",\"shape\":";
    AppendList(out, tensor.part->global_shape);
    out += ",\"offset\":";
    AppendList(out, tensor.part->offset);
    out += '}';
  }
  if (!out.empty()) out += '}';
  return out;
}

std::string AliasesJson(const std::map<std::string, std::string>& aliases) {
  std::string out;
  for (const auto& [name, target] : aliases) {
    out += out.empty() ? '{' : ',';
    AppendJsonString(out, name);
    out += ':';
    AppendJsonString(out, target);
  }
  if (!out.empty()) out += '}';
  return out;
}

// Appends a tensor without its name.
void AppendTensor(std::string& out, DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t begin,
                  std::uint64_t end) {
  out += "{\"dtype\":\"";
  out += DTypeName(dtype);
  out += "\",\"shape\":";
  AppendList(out, shape);
  out += ",\"data_offsets\":[";
  AppendDecimal(out, begin);
  out += ',';
  AppendDecimal(out, end);
  out += "]}";
}

// Appends members to a JSON object that is already open.
class Members {
 public:
  explicit Members(std::string& out) : out_(out) {}
  void Add(std::string_view key, std::string_view value) {
    Key(key);
    AppendJsonString(out_, value);
  }
  void Add(std::string_view key, std::uint64_t value) {
    Key(key);
    out_ += '"';
    AppendDecimal(out_, value);
    out_ += '"';
  }
  void Key(std::string_view key) {
    if (!first_) out_ += ',';
    first_ = false;
    AppendJsonString(out_, key);
    out_ += ':';
  }

 private:
  std::string& out_;
  bool first_ = true;
};

// Refuses what readers would refuse: values that are not finite, not UTF-8 or invalid JSON.
Result<std::string> ValuesJson(const Values& values, std::span<const LongValue> long_values) {
  std::string text = EncodeValues(values, long_values);
  if (const auto read = DecodeValues(text, "values"); !read.ok()) {
    return Status(StatusCode::kInvalidArgument, read.status().message());
  }
  return text;
}

// Returns the offset of the checksum table's first digit; 0 if there is none.
std::size_t AppendMetadata(std::string& out, const ShardHeader& header, const std::string& values,
                           std::size_t sum_count) {
  std::size_t sums_at = 0;
  out += '{';
  Members metadata(out);
  if (header.cairn) {
    metadata.Add(kVersionKey, std::uint64_t{kFormatVersion});
    metadata.Add(kStepKey, header.step);
    metadata.Add(kAttemptKey, header.attempt);
    metadata.Add(kShardKey, header.shard);
    if (const std::string parts = PartsJson(header.tensors); !parts.empty()) metadata.Add(kPartsKey, parts);
    if (!header.aliases.empty()) metadata.Add(kAliasesKey, AliasesJson(header.aliases));
    if (!header.values.empty() || !header.long_values.empty()) metadata.Add(kValuesKey, values);
    if (header.checksums) {
      metadata.Add(kBlockKey, kChecksumBlock);
      metadata.Key(kSumsKey);
      out += '"';
      sums_at = out.size();
      out.append(sum_count * kSumDigits, '0');
      out += '"';
    }
  }
  for (const auto& [key, value] : header.metadata) metadata.Add(key, value);
  out += '}';
  return sums_at;
}

}  // namespace

Result<ShardHeaderWriter> ShardHeaderWriter::Make(const ShardHeader& header, std::uint64_t room) {
  CAIRN_RETURN_IF_ERROR(CheckTensors(header));
  CAIRN_RETURN_IF_ERROR(CheckNames(header));
  CAIRN_RETURN_IF_ERROR(CheckLongValues(header));
  CAIRN_RETURN_IF_ERROR(CheckMetadata(header));
  CAIRN_ASSIGN_OR_RETURN(const std::string values, ValuesJson(header.values, header.long_values));

  ShardHeaderWriter writer;
  if (header.cairn && header.checksums) writer.sum_count_ = DivideUp(header.data_bytes(), kChecksumBlock);
  if (writer.sum_count_ > kMaxHeaderBytes / kSumDigits) {
    return Error(StatusCode::kInvalidArgument,
                 "a shard of {} bytes: its checksums need more than the {} bytes that safetensors allows for a header",
                 header.data_bytes(), kMaxHeaderBytes);
  }
  std::string out;
  out.reserve(kBlock + header.tensors.size() * 160 + writer.sum_count_ * kSumDigits);
  out.assign(kLengthWord, '\0');
  out += '{';
  Members top(out);
  if (header.cairn || !header.metadata.empty()) {
    top.Key(kMetadata);
    writer.sums_at_ = AppendMetadata(out, header, values, writer.sum_count_);
  }
  for (const ShardTensor& tensor : header.tensors) {
    top.Key(tensor.name);
    AppendTensor(out, tensor.dtype, tensor.shape, tensor.begin, tensor.end);
  }
  for (const LongValue& value : header.long_values) {
    top.Key(value.tensor);
    AppendTensor(out, DType::kU8, {static_cast<std::int64_t>(value.end - value.begin)}, value.begin, value.end);
  }
  out += '}';
  out.append(std::max(AlignUp(out.size(), kBlock), room) - out.size(), ' ');

  const std::uint64_t length = out.size() - kLengthWord;
  if (length > kMaxHeaderBytes) {
    return Error(StatusCode::kInvalidArgument, "a header for {} tensors: expected at most {} bytes, found {}",
                 header.tensors.size(), kMaxHeaderBytes, length);
  }
  for (std::size_t i = 0; i < kLengthWord; ++i) out[i] = static_cast<char>(length >> 8 * i & 0xff);
  writer.size_ = out.size();
  writer.block_.reset(AlignedBlock(out.size()));
  if (writer.block_ == nullptr) {
    return Error(StatusCode::kResourceExhausted, "no memory for a header of {} bytes", out.size());
  }
  std::ranges::copy(out, writer.block_.get());
  const auto [before, table, after] = writer.Split();
  writer.digest_before_ = Crc32c(before);
  writer.digest_after_ = Crc32c(after);
  return writer;
}

ShardHeaderWriter::Parts ShardHeaderWriter::Split() const {
  const Bytes all = std::as_bytes(std::span(bytes()));
  const std::size_t digits = sum_count_ * kSumDigits;
  return {all.first(sums_at_), all.subspan(sums_at_, digits), all.subspan(sums_at_ + digits)};
}

void ShardHeaderWriter::SetSums(std::span<const std::uint32_t> sums) {
  std::string digits;
  digits.reserve(sum_count_ * kSumDigits);
  for (const std::uint32_t sum : sums.first(std::min(sums.size(), sum_count_))) AppendHex32(digits, sum);
  std::ranges::copy(digits, block_.get() + sums_at_);
}

std::uint32_t ShardHeaderWriter::digest() const {
  const auto [before, table, after] = Split();
  return Crc32cCombine(Crc32c(table, digest_before_), digest_after_, after.size());
}

}  // namespace cairn
