#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "restore/reshard.h"
#include "restore/source.h"

namespace cairn {

/// A tensor as a whole, however the shards hold it.
struct WholeTensor {
  /// Its own name, or the logical name of its parts.
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

/// Divides a row-major tensor into boxes of at most `most` bytes, in the order of its bytes; each box is contiguous.
/// Pure. A box has at least one element. None for a tensor without elements.
[[nodiscard]] std::vector<Box> CutBoxes(const std::vector<std::int64_t>& shape, std::uint64_t item, std::uint64_t most);

/// Reads tensors of a checkpoint one behind the other, put together from its shards, in windows: for tools whose
/// tensors may not fit in memory. For one thread.
class WholeTensors {
 public:
  /// Plans windows of at most `window_bytes`. Every file of the source that holds a piece is selected, and stays so
  /// while this lives. Errors as for MatchTensors: a piece is missing, or pieces differ in dtype or shape, or overlap.
  [[nodiscard]] static Result<WholeTensors> Plan(TensorSource& source, const std::vector<WholeTensor>& tensors,
                                                 std::uint64_t window_bytes);

  [[nodiscard]] std::size_t windows() const { return windows_.size(); }
  [[nodiscard]] std::uint64_t bytes(std::size_t window) const { return windows_[window].bytes; }
  /// Reads and verifies one window into `to`, which has room for it. Errors as for RestoreCheckpoint.
  Status Read(const RestoreParts& parts, std::size_t window, std::byte* to);

 private:
  // To be read to bytes [at, at + bytes) of the window.
  struct Copy {
    std::uint32_t file = 0;
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
    PlannedCopy planned;
  };
  struct Window {
    std::uint64_t bytes = 0;
    std::vector<Copy> copies;
  };

  explicit WholeTensors(TensorSource& source) : source_(&source) {}

  TensorSource* source_;
  std::vector<Window> windows_;
  // The copies point into these.
  std::deque<std::string> names_;
  std::deque<RowShape> shapes_;
};

}  // namespace cairn
