#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace cairn {

// How an index spells numbers, names and boxes; docs/format.md describes it byte by byte. Each has one spelling.

inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kMaxIndexNameBytes = 4096;
inline constexpr std::size_t kMaxIndexDimensions = 64;
/// Where a box may end in each dimension, and how many elements it may have.
inline constexpr std::uint64_t kMaxIndexExtent = std::uint64_t{1} << 62;
/// The writer begins a new block where one has reached this length.
inline constexpr std::size_t kIndexBlockBytes = 64U << 10;
/// What readers take: each block up to the most, and each but the last from the least on.
inline constexpr std::uint64_t kLeastIndexBlockBytes = 4096;
inline constexpr std::uint64_t kMaxIndexBlockBytes = 1U << 20;

/// Seven bits a byte, the lowest first; each byte but the last has its highest bit set.
inline void AppendVarint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

/// Reads hostile bytes from the left.
class IndexBytes {
 public:
  explicit IndexBytes(Bytes bytes) : bytes_(bytes) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  /// None where the bytes end early, it passes 2^64 - 1, or fewer bytes would do.
  [[nodiscard]] std::optional<std::uint64_t> Number();
  /// Four bytes, little-endian.
  [[nodiscard]] std::optional<std::uint32_t> Word();
  [[nodiscard]] std::optional<std::string_view> Text(std::uint64_t length);

 private:
  Bytes bytes_;
};

/// Makes `name` the name that follows it in a sorted list: the bytes that both share, counted, then the rest of the new
/// one. Returns how many both share; all of `name` and nothing more means the same name again. None, and `name` as it
/// was, where the bytes end early, the new name is longer than kMaxIndexNameBytes or comes before `name`, or both share
/// more than is counted.
[[nodiscard]] std::optional<std::size_t> ReadNextName(IndexBytes& bytes, std::string& name);
/// Writes `name`, of whose bytes the name before shares `shared`, as ReadNextName takes it.
void AppendNextName(std::string& out, std::string_view name, std::size_t shared);

/// What is wrong with a box, in words; empty where an index takes it. Both lists have the same length.
[[nodiscard]] std::string BoxProblem(std::span<const std::int64_t> offset, std::span<const std::int64_t> shape);

}  // namespace cairn
