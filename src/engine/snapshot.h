#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor_table.h"
#include "device/device.h"
#include "format/shard_header.h"

namespace cairn {

/// What a save will write: views of the caller's tensors as one byte stream, in the order of the shard.
///
/// Made in the call of Save (small CPU tensors are copied there), laid out later on a worker. Immutable after LayOut.
class Snapshot {
 public:
  /// Copies what is copied in the call. The table's tensors stay the caller's.
  explicit Snapshot(std::shared_ptr<const TensorTable> table, Values values);

  /// Computes the order and the offsets. Once, before anything below is asked.
  void LayOut();

  /// Length of the byte stream.
  [[nodiscard]] std::uint64_t bytes() const { return offsets_.back(); }
  /// The copies that fill stream bytes [begin, end), in the stream's order; `memory` is where `begin` goes. Small CPU
  /// tensors are read from their copies, staged ones from staging.
  struct Piece {
    DeviceId device;
    CopyPiece copy;
  };
  [[nodiscard]] std::vector<Piece> Pieces(std::uint64_t begin, std::uint64_t end, std::byte* memory) const;

  /// Bytes that the tensors of `device` take in its staging memory.
  [[nodiscard]] std::uint64_t StagingBytes(DeviceId device) const;
  /// The copies that stage `device`'s tensors at `staging`; afterwards Pieces reads them from there.
  [[nodiscard]] std::vector<CopyPiece> StageAt(DeviceId device, std::byte* staging);

  /// Whether CPU memory beyond the small tensors must be read after the call of Save.
  [[nodiscard]] bool reads_cpu() const { return reads_cpu_; }
  [[nodiscard]] const TensorTable& table() const { return *table_; }
  /// The shard's header without its sums.
  [[nodiscard]] ShardHeader Header(std::uint64_t step, const std::string& attempt, std::uint64_t shard,
                                   bool checksums) const;

 private:
  const std::shared_ptr<const TensorTable> table_;
  const Values values_;
  const std::unique_ptr<std::byte[]> small_;  // Copies of table().small(), back to back.
  bool reads_cpu_ = false;

  // By place in StoreOrder(), from LayOut on.
  std::vector<std::uint64_t> offsets_{0};     // Where the tensor begins in the stream; one more at the end.
  std::vector<const StridedLayout*> source_;  // Where its bytes are read from.
  std::deque<StridedLayout> moved_;           // Sources that are not the caller's memory.
};

}  // namespace cairn
