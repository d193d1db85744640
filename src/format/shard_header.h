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

/// One tensor of a shard; offsets count from the first data byte.
struct ShardTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::optional<TensorPart> part;  ///< Absent: a whole tensor.
  friend bool operator==(const ShardTensor&, const ShardTensor&) = default;
};

/// All that a shard's header says. A plain safetensors file, written by others, decodes with cairn == false.
struct ShardHeader {
  bool cairn = true;  ///< Whether the cairn.* keys are there; the fields below `tensors` mean nothing where not.
  std::vector<ShardTensor> tensors;  ///< In the order of their bytes; contiguous, no holes, begin of the first is 0.

  std::uint64_t step = 0;
  std::string attempt;
  std::uint64_t shard = 0;
  std::map<std::string, std::string> aliases;  ///< Tied tensors: name -> the name in `tensors` that holds its bytes.
  Values values;
  std::vector<std::uint32_t> sums;  ///< CRC32C of each kChecksumBlock of data; empty where checksums were off.
  bool checksums = true;

  /// The __metadata__ entries that this version does not know: others' keys, and cairn.* keys that later versions add.
  /// Writers may set others' keys alone.
  std::map<std::string, std::string> metadata;
  /// File offset of the first data byte. A multiple of 4096 for Cairn's files. Set by decode and by ShardHeaderWriter.
  std::uint64_t data_begin = 0;

  [[nodiscard]] std::uint64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
  [[nodiscard]] std::uint64_t file_bytes() const { return data_begin + data_bytes(); }
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;
};

/// The bytes in front of a shard's data, made in two goes: its length is fixed by the tensors, its checksums come last.
class ShardHeaderWriter {
 public:
  /// Lays the header out, with zeros for sums (header.sums is ignored; there will be one for each started
  /// kChecksumBlock of data, none where header.checksums is off). Where header.cairn is off, a plain safetensors file's
  /// header: tensors and metadata alone. InvalidArgument, naming the tensor, for what readers would refuse: a header
  /// above kMaxHeaderBytes, naming its size; a tensor named __metadata__; names that are not UTF-8 or there twice;
  /// offsets that are not contiguous from 0; parts beyond their whole; aliases of nothing; values that are no JSON.
  /// ResourceExhausted.
  [[nodiscard]] static Result<ShardHeaderWriter> Make(const ShardHeader& header);

  /// Where the data begins: the length of bytes(), a multiple of 4096.
  [[nodiscard]] std::uint64_t data_begin() const { return size_; }
  [[nodiscard]] std::size_t sum_count() const { return sum_count_; }
  /// Fills the table in. `sums` has sum_count() entries. May be called again.
  void SetSums(std::span<const std::uint32_t> sums);
  /// The length word, the JSON text and its padding: file offsets 0 to data_begin(). At an address that is a multiple
  /// of 4096, to be written as it stands; lives as long as this.
  [[nodiscard]] std::string_view bytes() const { return {block_.get(), size_}; }
  /// CRC32C of bytes(): goes into the manifest. Only the table is read for it.
  [[nodiscard]] std::uint32_t digest() const;

 private:
  struct Parts {
    Bytes before, table, behind;
  };
  [[nodiscard]] Parts Split() const;

  std::unique_ptr<char, decltype(&std::free)> block_{nullptr, &std::free};
  std::uint64_t size_ = 0;
  std::size_t sums_at_ = 0;  // Where the table's first digit is.
  std::size_t sum_count_ = 0;
  std::uint32_t digest_before_ = 0;  // Of what stands in front of the table, and behind it.
  std::uint32_t digest_behind_ = 0;
};

/// From the first 8 bytes of a file: how many bytes the header has in all, the length word included. Corrupt where it
/// is above the limit or beyond the file. `file` is for messages.
[[nodiscard]] Result<std::uint64_t> ShardHeaderLength(Bytes first8, std::uint64_t file_bytes, const std::string& file);

/// Reads a header as hostile input. `bytes` is the length word and the whole JSON text; `file_bytes` the file's size.
/// Corrupt, naming the file, the tensor, what was expected and what was found; Unsupported for an unknown format
/// version.
[[nodiscard]] Result<ShardHeader> DecodeShardHeader(Bytes bytes, std::uint64_t file_bytes, const std::string& file);

/// Typed values <-> JSON text of one object. Every value comes back with its type and its bits. What is encoded must be
/// as State::Set takes it; decoding takes hostile input (Corrupt, beginning with `file`).
[[nodiscard]] std::string EncodeValues(const Values& values);
[[nodiscard]] Result<Values> DecodeValues(std::string_view json, const std::string& file);

}  // namespace cairn
