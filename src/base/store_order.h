#pragma once

#include <cstdint>
#include <string_view>

#include "cairn/tensor.h"

namespace cairn {

/// Tensors up to this size lie side by side in a shard.
inline constexpr std::uint64_t kSmallStoredBytes = 64U << 10;

/// Whether a tensor lies before another in a shard: dtype rank descending, which keeps every tensor aligned to its
/// element; then small before large; then by name.
///
/// What is identical on several ranks, such as norms and biases under tensor parallelism, is small, and one rank writes
/// it for all. Among the large tensors the others would read a whole block under a checksum for each.
struct StoredTensorKey {
  DType dtype = DType::kF32;
  std::uint64_t bytes = 0;
  std::string_view name;

  [[nodiscard]] bool small() const { return bytes <= kSmallStoredBytes; }
  friend bool operator<(const StoredTensorKey& a, const StoredTensorKey& b) {
    if (a.dtype != b.dtype) return a.dtype > b.dtype;
    return a.small() != b.small() ? a.small() : a.name < b.name;
  }
};

}  // namespace cairn
