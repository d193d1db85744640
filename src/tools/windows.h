#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "restore/source.h"

namespace cairn::tools {

/// A stretch of the i-th tensor of a list, as many bytes as fit a window with its neighbours.
struct Stretch {
  std::size_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t at = 0;  ///< Where in the window.
};

/// Cuts tensors of these sizes, in their order, into windows of at most `window_bytes`. Pure. Tensors without bytes are
/// in none.
[[nodiscard]] std::vector<std::vector<Stretch>> CutWindows(std::span<const std::uint64_t> sizes,
                                                           std::uint64_t window_bytes);

inline constexpr std::uint64_t kWindowBytes = 32U << 20;

/// Gives `compare` the bytes of two lists of tensors, each as long as its partner in the other, stretch by stretch: the
/// place of the pair in the lists, and where both sides' bytes are. A stretch holds whole elements.
using CompareStretch =
    std::function<void(std::size_t pair, const std::byte* a, const std::byte* b, std::uint64_t bytes)>;
Status ReadPairs(const RestoreParts& parts, TensorSource& a, std::span<const StoredTensor* const> of_a, TensorSource& b,
                 std::span<const StoredTensor* const> of_b, const CompareStretch& compare);

/// Reads one window's stretches of `tensors` into `memory`, which has kWindowBytes.
Status ReadWindow(const RestoreParts& parts, TensorSource& source, std::span<const StoredTensor* const> tensors,
                  std::span<const Stretch> window, std::byte* memory);

}  // namespace cairn::tools
