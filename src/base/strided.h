#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cairn {

/// A tensor's memory, its dimensions merged where possible: rows of contiguous bytes, repeated along outer strides.
///
/// The tensor's logical bytes are its elements in row-major order, as a safetensors file holds them.
struct StridedLayout {
  struct Dimension {
    std::int64_t size = 0;
    /// In bytes.
    std::int64_t stride = 0;
    friend bool operator==(const Dimension&, const Dimension&) = default;
  };
  std::byte* base = nullptr;
  /// The length of the innermost contiguous run.
  std::uint64_t row_bytes = 0;
  /// Outermost first; empty for contiguous memory.
  std::vector<Dimension> outer;
  /// The tensor's logical size: row_bytes times all outer sizes.
  std::uint64_t bytes = 0;

  [[nodiscard]] bool contiguous() const { return outer.empty(); }
  friend bool operator==(const StridedLayout&, const StridedLayout&) = default;
};

/// Merges dimensions; `strides` in elements, empty for contiguous. Sizes and strides are checked by the caller.
[[nodiscard]] StridedLayout MakeStridedLayout(void* base, std::size_t item, std::span<const std::int64_t> shape,
                                              std::span<const std::int64_t> strides);

/// Rows of a tensor's logical bytes: [begin, begin + bytes), then the next row after every `pitch` bytes.
struct LogicalRows {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;
};
/// Where the rows lie in the tensor's memory: the first row's address, and the distance to the next. None if a row is
/// not contiguous there, or the rows are not evenly spaced.
struct PlacedRows {
  std::byte* address = nullptr;
  std::int64_t pitch = 0;
};
[[nodiscard]] std::optional<PlacedRows> PlaceRows(const StridedLayout& layout, const LogicalRows& rows);

/// Copies logical bytes [begin, end) of the tensor to `to`.
void GatherBytes(const StridedLayout& from, std::uint64_t begin, std::uint64_t end, std::byte* to);
/// Copies `from` to logical bytes [begin, end) of the tensor.
void ScatterBytes(const StridedLayout& to, std::uint64_t begin, std::uint64_t end, const std::byte* from);
/// The same for rows, which are `pitch` bytes apart in `to` and `from`.
void GatherRows(const StridedLayout& from, const LogicalRows& rows, std::byte* to, std::uint64_t pitch);
void ScatterRows(const StridedLayout& to, const LogicalRows& rows, const std::byte* from, std::uint64_t pitch);

}  // namespace cairn
