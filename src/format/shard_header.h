#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "cairn/tensor.h"

namespace cairn {

inline constexpr int kFormatVersion = 1;
/// The safetensors limit on a header's length, in bytes.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// A file begins with the length of its header, in so many bytes.
inline constexpr std::size_t kLengthWord = 8;

/// One tensor of a shard. `begin` and `end` count from the first data byte.
struct ShardTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// None for a whole tensor.
  std::optional<TensorPart> part;
  friend bool operator==(const ShardTensor&, const ShardTensor&) = default;
};

/// A JSON value whose text is too long for the header: it is the contents of a tensor (U8, one dimension) that only the
/// value names. `begin` and `end` count from the first data byte.
struct LongValue {
  std::string name;
  std::string tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// Of the text.
  std::uint32_t crc32c = 0;
  friend bool operator==(const LongValue&, const LongValue&) = default;
};

/// The contents of a shard's header. A safetensors file of other software decodes with cairn == false.
struct ShardHeader {
  /// Whether the cairn.* keys are there. Otherwise the fields after `tensors` mean nothing.
  bool cairn = true;
  /// In the order of their bytes: contiguous from 0, without holes.
  std::vector<ShardTensor> tensors;

  std::uint64_t step = 0;
  std::string attempt;
  std::uint64_t shard = 0;
  /// Tied tensors: a name -> the name in `tensors` that holds its bytes.
  std::map<std::string, std::string> aliases;
  /// A reader of the file adds the long ones, once it has read their texts.
  Values values;
  /// In the order of their bytes: contiguous from the end of the tensors, without holes. They are not among `tensors`.
  std::vector<LongValue> long_values;
  /// CRC32C of each kChecksumBlock of data; empty without checksums.
  std::vector<std::uint32_t> sums;
  bool checksums = true;

  /// The __metadata__ entries that this version does not know: other software's keys and cairn.* keys of later
  /// versions. Writers may not set cairn.* keys.
  std::map<std::string, std::string> metadata;
  /// File offset of the first data byte; in Cairn's files a multiple of 4096. Set by DecodeShardHeader.
  std::uint64_t data_begin = 0;

  [[nodiscard]] std::uint64_t data_bytes() const {
    if (!long_values.empty()) return long_values.back().end;
    return tensors.empty() ? 0 : tensors.back().end;
  }
  [[nodiscard]] std::uint64_t file_bytes() const { return data_begin + data_bytes(); }
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;
};

/// Makes the bytes before a shard's data in two steps: the tensors determine their length, and the checksums come last.
class ShardHeaderWriter {
 public:
  /// Lays out the header, with zeros for the checksums: one for each started kChecksumBlock of data, or none if
  /// header.checksums is false. Ignores header.sums. If header.cairn is false, makes a plain safetensors header of
  /// tensors and metadata. InvalidArgument, naming the tensor, for what readers would refuse: a header above
  /// kMaxHeaderBytes (names its size); a tensor named __metadata__; names that are duplicate or not UTF-8; offsets that
  /// are not contiguous from 0; parts beyond their global shape; aliases of unknown tensors; invalid values.
  /// ResourceExhausted without memory. Pads it to `room`, a multiple of 4096, if it is shorter.
  [[nodiscard]] static Result<ShardHeaderWriter> Make(const ShardHeader& header, std::uint64_t room = 0);

  /// The offset of the data: the length of bytes(), a multiple of 4096.
  [[nodiscard]] std::uint64_t data_begin() const { return size_; }
  [[nodiscard]] std::size_t sum_count() const { return sum_count_; }
  /// Fills in the checksums. `sums` has sum_count() entries. May be called again.
  void SetSums(std::span<const std::uint32_t> sums);
  /// The length word, the JSON text and its padding: file offsets 0 to data_begin(). Aligned to 4096, so that it can be
  /// written directly. Valid as long as this.
  [[nodiscard]] std::string_view bytes() const { return {block_.get(), size_}; }
  /// CRC32C of bytes(), for the manifest. Reads only the table of checksums.
  [[nodiscard]] std::uint32_t digest() const;

 private:
  struct Parts {
    Bytes before, table, after;
  };
  [[nodiscard]] Parts Split() const;

  std::unique_ptr<char, decltype(&std::free)> block_{nullptr, &std::free};
  std::uint64_t size_ = 0;
  // The offset of the table's first digit.
  std::size_t sums_at_ = 0;
  std::size_t sum_count_ = 0;
  // Of the bytes before and after the table.
  std::uint32_t digest_before_ = 0;
  std::uint32_t digest_after_ = 0;
};

/// The header's total size, including the length word, from the first 8 bytes of a file. Corrupt if it exceeds the
/// limit or the file. `file` is for messages.
[[nodiscard]] Result<std::uint64_t> ShardHeaderLength(Bytes first8, std::uint64_t file_bytes, const std::string& file);

/// Decodes a header, which may be hostile. `bytes` is the length word and the whole JSON text, `file_bytes` the file's
/// size. Corrupt names the file, the tensor, the expected and the found value; Unsupported names an unknown format
/// version.
[[nodiscard]] Result<ShardHeader> DecodeShardHeader(Bytes bytes, std::uint64_t file_bytes, const std::string& file);

/// Converts typed values to and from a JSON object, preserving types and bits. EncodeValues needs values that
/// State::Set accepts; DecodeValues may get hostile input (Corrupt; the message begins with `file`), and gives long
/// values without `begin` and `end`.
[[nodiscard]] std::string EncodeValues(const Values& values, std::span<const LongValue> long_values = {});
struct DecodedValues {
  Values values;
  std::vector<LongValue> long_values;
};
[[nodiscard]] Result<DecodedValues> DecodeValues(std::string_view json, const std::string& file);

}  // namespace cairn
