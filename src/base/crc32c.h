#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/finite.h"

namespace cairn {

/// CRC32C (Castagnoli) of `bytes`, continued from `crc`, the CRC of the bytes before (0 at the start).
[[nodiscard]] std::uint32_t Crc32c(Bytes bytes, std::uint32_t crc = 0);
/// The same, and looks for what is not finite on the way.
[[nodiscard]] std::uint32_t Crc32c(Bytes bytes, std::uint32_t crc, const FiniteLook& look);

/// Copies `from` to `to` in one pass. Returns the CRC32C of what it stored, continued from `crc`: a byte that changes
/// meanwhile is copied and summed with the same value. Long runs do not stay in the cache. The ranges do not overlap.
[[nodiscard]] std::uint32_t CopyWithCrc32c(Bytes from, std::byte* to, std::uint32_t crc = 0,
                                           const FiniteLook& look = {});

/// CRC32C of A followed by B, computed from both CRCs and B's length alone.
[[nodiscard]] std::uint32_t Crc32cCombine(std::uint32_t crc_of_a, std::uint32_t crc_of_b, std::uint64_t bytes_of_b);

}  // namespace cairn
