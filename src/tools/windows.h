#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "restore/source.h"

namespace cairn::tools {

/// A part of the i-th tensor of a list, in a window.
struct Slice {
  std::size_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// Its offset in the window.
  std::uint64_t at = 0;
};

/// Divides tensors of these sizes, in order, into windows of at most `window_bytes`. Pure. Skips empty tensors.
[[nodiscard]] std::vector<std::vector<Slice>> CutWindows(std::span<const std::uint64_t> sizes,
                                                         std::uint64_t window_bytes);

inline constexpr std::uint64_t kWindowBytes = 32U << 20;

/// Passes the bytes of two lists of tensors, equally long in pairs, to `compare`, part by part: the index of the pair
/// and both sides' bytes, always whole elements.
using CompareStretch =
    std::function<void(std::size_t pair, const std::byte* a, const std::byte* b, std::uint64_t bytes)>;
Status ReadPairs(const RestoreParts& parts, TensorSource& a, std::span<const StoredTensor* const> of_a, TensorSource& b,
                 std::span<const StoredTensor* const> of_b, const CompareStretch& compare);

/// Reads one window of `tensors` into `memory`, which has kWindowBytes.
Status ReadWindow(const RestoreParts& parts, TensorSource& source, std::span<const StoredTensor* const> tensors,
                  std::span<const Slice> window, std::byte* memory);

}  // namespace cairn::tools
