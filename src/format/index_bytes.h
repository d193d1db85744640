#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace cairn {

// The encoding of numbers, names and boxes in an index, as docs/format.md describes it. Each has one encoding.

inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kMaxIndexNameBytes = 4096;
inline constexpr std::size_t kMaxIndexDimensions = 64;
/// The maximum of a box's end in each dimension, and of its number of elements.
inline constexpr std::uint64_t kMaxIndexExtent = std::uint64_t{1} << 62;
/// The writer begins a new block once one has reached this length.
inline constexpr std::size_t kIndexBlockBytes = 64U << 10;
/// The limits that readers enforce. The last block may be shorter than the minimum.
inline constexpr std::uint64_t kMinIndexBlockBytes = 4096;
inline constexpr std::uint64_t kMaxIndexBlockBytes = 1U << 20;

/// Seven bits a byte, the lowest first; each byte but the last has its highest bit set.
inline void AppendVarint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

/// Reads bytes that may be hostile, from the left.
class IndexByteReader {
 public:
  explicit IndexByteReader(Bytes bytes) : bytes_(bytes) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  /// None if the bytes end early, the number exceeds 2^64 - 1, or its encoding is not the shortest.
  [[nodiscard]] std::optional<std::uint64_t> Number();
  /// Four bytes, little-endian.
  [[nodiscard]] std::optional<std::uint32_t> Word();
  [[nodiscard]] std::optional<std::string_view> Text(std::uint64_t length);

 private:
  Bytes bytes_;
};

/// Replaces `name` by the next name of a sorted list, which is encoded as the number of leading bytes that both share
/// and the rest. Returns that number; all of `name` without a rest repeats the name. None, with `name` unchanged, if
/// the bytes end early, the new name is longer than kMaxIndexNameBytes or sorts before `name`, or the names share more
/// bytes than that.
[[nodiscard]] std::optional<std::size_t> ReadNextName(IndexByteReader& bytes, std::string& name);
/// Encodes `name`, which shares its first `shared` bytes with the previous name, for ReadNextName.
void AppendNextName(std::string& out, std::string_view name, std::size_t shared);

/// The error in a box, for messages; empty if an index can hold the box. Both lists have the same length.
[[nodiscard]] std::string BoxProblem(std::span<const std::int64_t> offset, std::span<const std::int64_t> shape);

}  // namespace cairn
