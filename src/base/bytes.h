#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// The alignment that O_DIRECT requires of addresses, offsets and lengths, and that of a shard's first data byte.
inline constexpr std::uint64_t kBlock = 4096;
/// Bytes covered by one CRC32C in a shard's table, independent of the I/O chunk.
inline constexpr std::uint64_t kChecksumBlock = 1U << 20;

[[nodiscard]] constexpr std::uint64_t AlignUp(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }
[[nodiscard]] constexpr std::uint64_t AlignDown(std::uint64_t n, std::uint64_t to) { return n / to * to; }
[[nodiscard]] constexpr std::uint64_t DivideUp(std::uint64_t n, std::uint64_t by) { return (n + by - 1) / by; }

}  // namespace cairn
