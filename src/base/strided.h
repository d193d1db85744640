#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace cairn {

/// A tensor's memory, its dimensions merged as far as they go: rows of contiguous bytes, repeated along outer strides.
///
/// The tensor's logical bytes are its elements in row-major order, as a safetensors file holds them.
struct StridedLayout {
  struct Dimension {
    std::int64_t size = 0;
    std::int64_t stride = 0;  ///< In bytes.
    friend bool operator==(const Dimension&, const Dimension&) = default;
  };
  std::byte* base = nullptr;
  std::uint64_t row_bytes = 0;   ///< Contiguous bytes of the innermost run.
  std::vector<Dimension> outer;  ///< Outermost first; empty for contiguous memory.
  std::uint64_t bytes = 0;       ///< row_bytes times all outer sizes: the tensor's logical size.

  [[nodiscard]] bool contiguous() const { return outer.empty(); }
  friend bool operator==(const StridedLayout&, const StridedLayout&) = default;
};

/// Merges dimensions; `strides` in elements, empty for contiguous. Sizes and strides are checked by the caller.
[[nodiscard]] StridedLayout MakeStridedLayout(void* base, std::size_t item, std::span<const std::int64_t> shape,
                                              std::span<const std::int64_t> strides);

/// Rows of a tensor's logical bytes: [begin, begin + bytes), and the same number of them every `pitch` bytes.
struct LogicalRows {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;
};
/// Where the rows lie in the tensor's memory: the first one's address, and how many bytes the next one is further. None
/// where they are not contiguous there, or not evenly apart.
struct PlacedRows {
  std::byte* address = nullptr;
  std::int64_t pitch = 0;
};
[[nodiscard]] std::optional<PlacedRows> PlaceRows(const StridedLayout& layout, const LogicalRows& rows);

/// Copies logical bytes [begin, end) of the tensor to `to`.
void GatherBytes(const StridedLayout& from, std::uint64_t begin, std::uint64_t end, std::byte* to);
/// Copies `from` to logical bytes [begin, end) of the tensor.
void ScatterBytes(const StridedLayout& to, std::uint64_t begin, std::uint64_t end, const std::byte* from);
/// The same of rows; those in `to` and `from` are `pitch` bytes apart.
void GatherRows(const StridedLayout& from, const LogicalRows& rows, std::byte* to, std::uint64_t pitch);
void ScatterRows(const StridedLayout& to, const LogicalRows& rows, const std::byte* from, std::uint64_t pitch);

}  // namespace cairn
