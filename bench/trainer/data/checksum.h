#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace cairn::trainer {

/// CRC-32 as zlib has it, as data.json spells it: "crc32:" and eight hexadecimal digits.
std::string ChecksumOf(std::span<const std::byte> bytes);

}  // namespace cairn::trainer
