#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "format/fields.h"
#include "format/name_index.h"
#include "format/records_reader.h"
#include "format/shard_header.h"
#include "format/shard_keys.h"

namespace cairn {
namespace {

using Strings = std::map<std::string, std::string>;

class HeaderReader final : public RecordsReader {
 public:
  HeaderReader() : RecordsReader({.text = "dtype", .lists = {"shape", "data_offsets"}}, kMetadata) {}

  std::vector<ShardTensor> tensors;
  [[nodiscard]] Strings TakeMetadata() { return std::move(strings_); }

 private:
  bool OnRecord(const Record& record) override {
    const std::vector<std::int64_t>& shape = record.lists[0];
    const std::vector<std::int64_t>& offsets = record.lists[1];
    const auto dtype = DTypeFromName(record.text);
    if (!dtype) {
      return Fail(StatusCode::kUnsupported, "tensor {}: unknown dtype {}", Quoted(record.name), Quoted(record.text));
    }
    if (offsets.size() != 2) {
      return Fail("tensor {}: data_offsets: expected 2 numbers, found {}", Quoted(record.name), offsets.size());
    }
    const auto bytes = TensorBytes(*dtype, shape);
    if (!bytes) {
      return Fail("tensor {}: shape: expected at most 2^62 bytes, found {}", Quoted(record.name), Listed(shape));
    }
    if (offsets[1] < offsets[0] || static_cast<std::uint64_t>(offsets[1] - offsets[0]) != *bytes) {
      return Fail("tensor {}: data_offsets: expected {} bytes for {} of shape {}, found [{}, {}]", Quoted(record.name),
                  *bytes, DTypeName(*dtype), Listed(shape), offsets[0], offsets[1]);
    }
    tensors.push_back({.name = record.name,
                       .dtype = *dtype,
                       .shape = shape,
                       .begin = static_cast<std::uint64_t>(offsets[0]),
                       .end = static_cast<std::uint64_t>(offsets[1])});
    return true;
  }
};

class PartsReader final : public RecordsReader {
 public:
  PartsReader(std::vector<ShardTensor>& tensors, const NameIndex& index)
      : RecordsReader({.text = "name", .lists = {"shape", "offset"}}, {}), tensors_(tensors), index_(index) {}

 private:
  bool OnRecord(const Record& record) override {
    const auto found = index_.Find(record.name);
    if (!found) return Fail("tensor {}: not in the shard", Quoted(record.name));
    ShardTensor& tensor = tensors_[*found];
    if (tensor.part) return Fail("tensor {}: expected once, found twice", Quoted(record.name));
    tensor.part = {.logical_name = record.text, .global_shape = record.lists[0], .offset = record.lists[1]};
    if (const auto problem = PartProblem(tensor.dtype, tensor.shape, *tensor.part); !problem.empty()) {
      return Fail("tensor {}: {}", Quoted(record.name), problem);
    }
    return true;
  }

  std::vector<ShardTensor>& tensors_;
  const NameIndex& index_;
};

class AliasesReader final : public JsonEvents {
 public:
  explicit AliasesReader(const NameIndex& index) : index_(index) {}
  Strings aliases;

 private:
  bool OnScalar(const JsonScalar& value) override {
    if (value.kind != JsonScalar::Kind::kText || !index_.Find(value.text)) {
      return Fail("alias {}: expected the name of a tensor in the shard, found {}", Quoted(name_), value.Describe());
    }
    if (name_ == kMetadata || index_.Find(name_)) {
      return Fail("alias {}: expected a new name, found that of a tensor", Quoted(name_));
    }
    if (!aliases.emplace(name_, value.text).second) {
      return Fail("alias {}: expected once, found twice", Quoted(name_));
    }
    return true;
  }
  bool OnKey(std::string_view key) override {
    name_ = key;
    return true;
  }
  bool OnOpen(char bracket) override {
    if (std::exchange(open_, true)) {
      return Fail("alias {}: expected the name of a tensor in the shard, found {}", Quoted(name_),
                  bracket == '{' ? "an object" : "an array");
    }
    return true;
  }
  bool OnClose() override { return true; }

  const NameIndex& index_;
  std::string name_;
  bool open_ = false;
};

// Sorts the tensors by offset and checks that they are contiguous from 0 to the end of the file.
Status PlaceTensors(std::vector<ShardTensor>& tensors, std::uint64_t data_bytes, const std::string& file) {
  const auto before = [](const ShardTensor& a, const ShardTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  };
  if (!std::ranges::is_sorted(tensors, before)) std::ranges::stable_sort(tensors, before);
  std::uint64_t end = 0;
  for (const ShardTensor& tensor : tensors) {
    if (tensor.begin != end) {
      return Error(StatusCode::kCorrupt, "{}: tensor {}: data_offsets: expected to begin at {}, found {}: {}", file,
                   Quoted(tensor.name), end, tensor.begin, tensor.begin < end ? "tensors overlap" : "a hole");
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    return Error(StatusCode::kCorrupt, "{}: data of the tensors: expected {} bytes, found {}", file, end, data_bytes);
  }
  return Status::Ok();
}

// Removes a member of __metadata__ and returns it.
Result<std::string> TakeText(Strings& metadata, std::string_view key, const std::string& file) {
  const auto found = metadata.find(std::string(key));
  if (found == metadata.end()) return Error(StatusCode::kCorrupt, "{}: {}: missing", file, key);
  std::string text = std::move(found->second);
  metadata.erase(found);
  return text;
}

Result<std::uint64_t> TakeNumber(Strings& metadata, std::string_view key, const std::string& file) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, TakeText(metadata, key, file));
  const auto number = ParseDecimal(text);
  if (!number) {
    return Error(StatusCode::kCorrupt, "{}: {}: expected a number from 0 to 2^64 - 1, found {}", file, key,
                 Quoted(text));
  }
  return *number;
}

Status TakeSums(Strings& metadata, ShardHeader& header, const std::string& file) {
  header.checksums = metadata.contains(std::string(kSumsKey)) || metadata.contains(std::string(kBlockKey));
  if (!header.checksums) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t block, TakeNumber(metadata, kBlockKey, file));
  if (block != kChecksumBlock) {
    return Error(StatusCode::kUnsupported, "{}: {}: expected {}, found {}", file, kBlockKey, kChecksumBlock, block);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string digits, TakeText(metadata, kSumsKey, file));
  const std::uint64_t count = DivideUp(header.data_bytes(), kChecksumBlock);
  if (digits.size() % 8 != 0 || digits.size() / 8 != count) {
    return Error(StatusCode::kCorrupt, "{}: {}: expected {} checksums of 8 digits for {} bytes, found {} characters",
                 file, kSumsKey, count, header.data_bytes(), digits.size());
  }
  header.sums.reserve(count);
  for (std::size_t i = 0; i < digits.size(); i += 8) {
    const auto sum = ParseHex32(std::string_view(digits).substr(i, 8));
    if (!sum) {
      return Error(StatusCode::kCorrupt, "{}: {}: block {}: expected 8 lower-case hexadecimal digits, found {}", file,
                   kSumsKey, i / 8, Quoted(std::string_view(digits).substr(i, 8)));
    }
    header.sums.push_back(*sum);
  }
  return Status::Ok();
}

// The last tensors of the data are these values' texts, in any order: takes them out of the tensors.
Status TakeLongValues(std::vector<LongValue> values, ShardHeader& header, const std::string& where) {
  const auto invalid = [&where](const LongValue& value, std::string_view what) {
    return Error(StatusCode::kCorrupt, "{}: value {}: expected {}", where, Quoted(value.name), what);
  };
  std::map<std::string_view, LongValue*> by_tensor;
  for (LongValue& value : values) {
    if (!by_tensor.emplace(value.tensor, &value).second) return invalid(value, "a tensor that no other value names");
  }
  for (const auto& [alias, holder] : header.aliases) {
    if (const auto found = by_tensor.find(holder); found != by_tensor.end()) {
      return invalid(*found->second, "a tensor that no alias names");
    }
  }
  std::size_t first = header.tensors.size();
  for (; first > 0; --first) {
    const ShardTensor& tensor = header.tensors[first - 1];
    const auto found = by_tensor.find(tensor.name);
    if (found == by_tensor.end()) break;
    LongValue& value = *found->second;
    if (tensor.dtype != DType::kU8 || tensor.shape.size() != 1 || tensor.shape[0] == 0 || tensor.part) {
      return invalid(value, "its text in a whole tensor of U8 with one dimension");
    }
    value.begin = tensor.begin;
    value.end = tensor.end;
  }
  for (const LongValue& value : values) {
    if (value.end == 0) return invalid(value, "its text in one of the last tensors of the file");
  }
  header.tensors.resize(first);
  std::ranges::sort(values, {}, &LongValue::begin);
  header.long_values = std::move(values);
  return Status::Ok();
}

// The tables that are JSON in a string. Empty ones are omitted.
Status TakeTables(Strings& metadata, ShardHeader& header, const NameIndex& index, const std::string& file) {
  const auto where = [&file](std::string_view key) { return fmt::format("{}: {}", file, key); };
  if (metadata.contains(std::string(kPartsKey))) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, TakeText(metadata, kPartsKey, file));
    PartsReader reader(header.tensors, index);
    CAIRN_RETURN_IF_ERROR(ReadJson(text, reader, where(kPartsKey)));
  }
  if (metadata.contains(std::string(kAliasesKey))) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, TakeText(metadata, kAliasesKey, file));
    AliasesReader reader(index);
    CAIRN_RETURN_IF_ERROR(ReadJson(text, reader, where(kAliasesKey)));
    header.aliases = std::move(reader.aliases);
  }
  if (metadata.contains(std::string(kValuesKey))) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, TakeText(metadata, kValuesKey, file));
    CAIRN_ASSIGN_OR_RETURN(DecodedValues found, DecodeValues(text, where(kValuesKey)));
    header.values = std::move(found.values);
    CAIRN_RETURN_IF_ERROR(TakeLongValues(std::move(found.long_values), header, where(kValuesKey)));
  }
  return Status::Ok();
}

Status TakeCairnKeys(Strings& metadata, ShardHeader& header, const NameIndex& index, const std::string& file) {
  // First, because in another version all other keys may have another meaning.
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t version, TakeNumber(metadata, kVersionKey, file));
  if (version != kFormatVersion) {
    return Error(StatusCode::kUnsupported, "{}: {}: expected {}, found {}", file, kVersionKey, kFormatVersion, version);
  }
  CAIRN_ASSIGN_OR_RETURN(header.step, TakeNumber(metadata, kStepKey, file));
  CAIRN_ASSIGN_OR_RETURN(header.attempt, TakeText(metadata, kAttemptKey, file));
  if (!IsAttemptId(header.attempt)) {
    return Error(StatusCode::kCorrupt, "{}: {}: expected 1 to 64 letters, digits, '-' or '_', found {}", file,
                 kAttemptKey, Quoted(header.attempt));
  }
  CAIRN_ASSIGN_OR_RETURN(header.shard, TakeNumber(metadata, kShardKey, file));
  if (header.data_begin % kBlock != 0) {
    return Error(StatusCode::kCorrupt, "{}: start of the data: expected a multiple of {}, found {}", file, kBlock,
                 header.data_begin);
  }
  CAIRN_RETURN_IF_ERROR(TakeSums(metadata, header, file));
  return TakeTables(metadata, header, index, file);
}

}  // namespace

Result<std::uint64_t> ShardHeaderLength(Bytes first8, std::uint64_t file_bytes, const std::string& file) {
  if (first8.size() < kLengthWord || file_bytes < kLengthWord) {
    return Error(StatusCode::kCorrupt, "{}: expected at least {} bytes, found {}", file, kLengthWord,
                 std::min<std::uint64_t>(first8.size(), file_bytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthWord; ++i) length |= std::to_integer<std::uint64_t>(first8[i]) << 8 * i;
  if (length > kMaxHeaderBytes) {
    return Error(StatusCode::kCorrupt, "{}: header length: expected at most {}, found {}", file, kMaxHeaderBytes,
                 length);
  }
  if (length > file_bytes - kLengthWord) {
    return Error(StatusCode::kCorrupt, "{}: header length: expected at most {} in a file of {} bytes, found {}", file,
                 file_bytes - kLengthWord, file_bytes, length);
  }
  return length + kLengthWord;
}

Result<ShardHeader> DecodeShardHeader(Bytes bytes, std::uint64_t file_bytes, const std::string& file) {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t length, ShardHeaderLength(bytes, file_bytes, file));
  if (bytes.size() != length) {
    return Error(StatusCode::kCorrupt, "{}: expected a header of {} bytes, found {}", file, length, bytes.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthWord, length - kLengthWord);
  HeaderReader reader;
  CAIRN_RETURN_IF_ERROR(ReadJson(text, reader, file + ": header"));

  ShardHeader header;
  header.data_begin = length;
  header.tensors = std::move(reader.tensors);
  CAIRN_RETURN_IF_ERROR(PlaceTensors(header.tensors, file_bytes - length, file));
  const NameIndex index(header.tensors);
  if (const auto duplicate = index.duplicate()) {
    return Error(StatusCode::kCorrupt, "{}: tensor {}: expected once, found twice", file,
                 Quoted(header.tensors[*duplicate].name));
  }
  Strings metadata = reader.TakeMetadata();
  const auto own = metadata.lower_bound(std::string(kCairnPrefix));
  header.cairn = own != metadata.end() && own->first.starts_with(kCairnPrefix);
  if (header.cairn) {
    CAIRN_RETURN_IF_ERROR(TakeCairnKeys(metadata, header, index, file));
  } else {
    header.checksums = false;
  }
  header.metadata = std::move(metadata);
  return header;
}

}  // namespace cairn
