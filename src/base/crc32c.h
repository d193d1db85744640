#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace cairn {

/// CRC32C (Castagnoli) of `bytes`, continuing from `crc`, the value for what came before (0 at the start).
[[nodiscard]] std::uint32_t Crc32c(Bytes bytes, std::uint32_t crc = 0);

}  // namespace cairn
