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

/// What a save writes: views of the caller's tensors as one byte stream, in the shard's order.
///
/// Made during the call of Save, which copies small CPU tensors; laid out later on a worker. Immutable after LayOut.
class Snapshot {
 public:
  /// Copies the small CPU tensors. The other tensors stay the caller's.
  explicit Snapshot(std::shared_ptr<const TensorTable> table, Values values);

  /// Computes the order and the offsets. Call it once, before the functions below.
  void LayOut();

  /// Length of the byte stream.
  [[nodiscard]] std::uint64_t bytes() const { return offsets_.back(); }
  /// The copies that fill stream bytes [begin, end), in stream order; `memory` is the target of `begin`. Reads small
  /// CPU tensors from their copies.
  struct Piece {
    DeviceId device;
    CopyPiece copy;
  };
  [[nodiscard]] std::vector<Piece> Pieces(std::uint64_t begin, std::uint64_t end, std::byte* memory) const;
  /// Stream bytes [begin, end) by dtype, in stream order: at most one run of each.
  struct Run {
    DType dtype;
    std::uint64_t bytes;
  };
  [[nodiscard]] std::vector<Run> Runs(std::uint64_t begin, std::uint64_t end) const;

  /// Whether CPU memory other than the small tensors is read after the call of Save.
  [[nodiscard]] bool reads_cpu() const { return reads_cpu_; }
  [[nodiscard]] const TensorTable& table() const { return *table_; }
  /// The shard's header without checksums.
  [[nodiscard]] ShardHeader Header(std::uint64_t step, const std::string& attempt, std::uint64_t shard,
                                   bool checksums) const;

 private:
  const std::shared_ptr<const TensorTable> table_;
  const Values values_;
  // Copies of table().small(), back to back.
  const std::unique_ptr<std::byte[]> small_;
  bool reads_cpu_ = false;

  // In StoreOrder(), from LayOut on: each tensor's offset in the stream (and one more at the end), and where its bytes
  // are read from.
  std::vector<std::uint64_t> offsets_{0};
  std::vector<const StridedLayout*> source_;
  // All of the stream by dtype.
  std::vector<Run> runs_;
  // The copies of small CPU tensors.
  std::deque<StridedLayout> moved_;
};

}  // namespace cairn
