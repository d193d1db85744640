#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_table.h"
#include "device/device.h"
#include "engine/kept_file.h"
#include "format/shard_header.h"

namespace cairn {

/// JSON values whose texts are so long are written as tensors' data, not into the header: a header is parsed as a whole
/// by whoever wants anything of the file, and safetensors limits its length.
inline constexpr std::size_t kLongValueBytes = 1U << 20;

/// What a save writes: views of the caller's tensors as one byte stream, in the shard's order, and the texts of long
/// values; then, if it writes a kept file, what that holds, in the file's order. The second part begins with a chunk of
/// its own: the stream has a gap before it, of which no chunk has a byte.
///
/// Made during the call of Save, which copies small CPU tensors; laid out later on a worker. Immutable after LayOut.
class Snapshot {
 public:
  /// Copies the small CPU tensors. The other tensors stay the caller's.
  explicit Snapshot(std::shared_ptr<const TensorTable> table, Values values);
  /// Of a shard that an earlier process has kept in memory, for a save of it to the disk: laid out as it is stored
  /// there, and read from `data`, which lives as long as this. See ReadFrom. InvalidArgument if it is no shard of
  /// Cairn's with checksums.
  [[nodiscard]] static Result<std::unique_ptr<Snapshot>> OfStored(ShardHeader stored,
                                                                  std::shared_ptr<const std::byte> data,
                                                                  std::uint64_t chunk_bytes);

  /// Computes the order and the offsets, for chunks of that size. Call it once, before the functions below.
  void LayOut(std::uint64_t chunk_bytes, KeptChoice kept = {});

  /// Length of the byte stream, and of its two parts, each the data of one file.
  [[nodiscard]] std::uint64_t bytes() const { return kept_bytes_ == 0 ? shard_bytes_ : kept_begin_ + kept_bytes_; }
  [[nodiscard]] std::uint64_t shard_bytes() const { return shard_bytes_; }
  [[nodiscard]] std::uint64_t kept_bytes() const { return kept_bytes_; }
  /// Where the second part begins.
  [[nodiscard]] std::uint64_t kept_begin() const { return kept_begin_; }
  /// Whether the byte is of the second part.
  [[nodiscard]] bool IsKept(std::uint64_t at) const { return kept_bytes_ != 0 && at >= kept_begin_; }
  /// The end of the chunk that begins there.
  [[nodiscard]] std::uint64_t ChunkEnd(std::uint64_t begin) const {
    return std::min(begin + chunk_bytes_, IsKept(begin) ? bytes() : shard_bytes_);
  }
  /// Where the chunk behind that one begins, or the end of the stream.
  [[nodiscard]] std::uint64_t NextChunk(std::uint64_t begin) const { return std::min(begin + chunk_bytes_, bytes()); }
  /// Values whose texts are in the stream.
  [[nodiscard]] bool has_long_values() const { return stored_ ? !stored_->long_values.empty() : !long_values_.empty(); }
  /// The tensor that has the byte.
  [[nodiscard]] const std::string& NameAt(std::uint64_t at) const;
  /// What is kept, written or linked.
  [[nodiscard]] const KeptChoice& kept() const { return kept_; }
  [[nodiscard]] const std::shared_ptr<const TensorTable>& shared_table() const { return table_; }
  /// The copies that fill stream bytes [begin, end), in stream order; `memory` is the target of `begin`. Reads small
  /// CPU tensors from their copies.
  struct Piece {
    DeviceId device;
    CopyPiece copy;
  };
  [[nodiscard]] std::vector<Piece> Pieces(std::uint64_t begin, std::uint64_t end, std::byte* memory) const;
  /// Stream bytes [begin, end) of one part by dtype, in stream order: at most one run of each.
  struct Run {
    DType dtype;
    std::uint64_t bytes;
  };
  [[nodiscard]] std::vector<Run> Runs(std::uint64_t begin, std::uint64_t end) const;

  /// After LayOut, once all was copied to `data`, and summed: reads the stream from there, for a save of it elsewhere,
  /// whose sums must be the same.
  void ReadFrom(std::shared_ptr<const std::byte> data, std::vector<std::uint32_t> sums);
  [[nodiscard]] bool laid_out() const { return order_ != nullptr; }
  /// Where it reads from after ReadFrom. Else null.
  [[nodiscard]] const std::byte* copy() const { return copy_.get(); }
  /// The first block that does not have the sum that it had. None if all do, or before ReadFrom.
  [[nodiscard]] std::optional<std::uint64_t> FindChanged(std::span<const std::uint32_t> sums) const;

  /// Whether CPU memory other than the small tensors is read after the call of Save.
  [[nodiscard]] bool reads_cpu() const { return reads_cpu_; }
  [[nodiscard]] const TensorTable& table() const { return *table_; }
  /// The shard's header, or that of the kept file that is written, without checksums.
  [[nodiscard]] ShardHeader Header(std::uint64_t step, const std::string& attempt, std::uint64_t shard, bool checksums,
                                   bool of_kept = false) const;

 private:
  void TakeLongValues();
  void DivideOrder();
  void PlaceInOrder();
  /// Of a tensor by its number in the table, or of a long value, whose numbers follow.
  [[nodiscard]] bool IsText(std::uint32_t i) const { return i >= table_->size(); }
  [[nodiscard]] std::uint64_t BytesOf(std::uint32_t i) const;
  [[nodiscard]] DType DTypeOf(std::uint32_t i) const;

  const std::shared_ptr<const TensorTable> table_;
  Values values_;
  // See OfStored. Its long values are entries of the table, too.
  std::optional<ShardHeader> stored_;
  // A long value's name, its tensor's, and its text.
  struct Text {
    std::string name;
    std::string tensor;
    std::string text;
  };
  std::deque<Text> long_values_;
  // Copies of table().small(), back to back.
  const std::unique_ptr<std::byte[]> small_;
  bool reads_cpu_ = false;

  // From LayOut on.
  KeptChoice kept_;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t shard_bytes_ = 0;
  std::uint64_t kept_begin_ = 0;
  std::uint64_t kept_bytes_ = 0;
  // The table's StoreOrder(), or, if something is kept or long, `divided_`: those of the shard with the long values,
  // then those of the kept file.
  const std::vector<std::uint32_t>* order_ = nullptr;
  std::vector<std::uint32_t> divided_;
  std::size_t shard_tensors_ = 0;
  // In this order: each tensor's offset in the stream (and one more at the end), and where its bytes are read from.
  std::vector<std::uint64_t> offsets_;
  std::vector<const StridedLayout*> source_;
  // All of the stream by dtype, the gap too.
  std::vector<Run> runs_;
  // See ReadFrom.
  std::shared_ptr<const std::byte> copy_;
  std::vector<std::uint32_t> copied_sums_;
  // The copies of small CPU tensors, and the texts. After ReadFrom everything.
  std::deque<StridedLayout> moved_;
};

}  // namespace cairn
