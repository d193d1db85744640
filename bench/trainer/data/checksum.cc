#include "data/checksum.h"

#include <isa-l/crc.h>

#include <array>
#include <cstdio>

namespace cairn::trainer {

std::string ChecksumOf(std::span<const std::byte> bytes) {
  std::array<char, 16> sum{};
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  std::snprintf(sum.data(), sum.size(), "crc32:%08x", crc32_gzip_refl(0, data, bytes.size()));
  return sum.data();
}

}  // namespace cairn::trainer
