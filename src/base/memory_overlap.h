#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/strided.h"

namespace cairn {

/// Which of several tensors lie in the same memory, by their places in the list.
struct SharedMemory {
  using Pair = std::pair<std::size_t, std::size_t>;
  /// Those that are one tensor: each with the first of them.
  std::vector<Pair> aliases;
  /// Two others that have a byte in common, if there are any; one such pair.
  std::optional<Pair> overlap;
};

/// Tensors that interleave, such as columns of one, share nothing. `is_one` says whether two with the same layout are
/// one tensor. Within a tensor no elements may share memory. Takes the time of a sort; only tensors that interleave are
/// compared in pairs. Where that takes too long, the answer is that they overlap.
[[nodiscard]] SharedMemory FindSharedMemory(std::span<const StridedLayout> tensors,
                                            const std::function<bool(std::size_t, std::size_t)>& is_one);

}  // namespace cairn
