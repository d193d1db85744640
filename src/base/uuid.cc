#include "base/uuid.h"

#include <fmt/format.h>

#include <cstdint>
#include <random>

namespace cairn {

std::string MakeUuid() {
  std::random_device random;
  const auto word = [&random] { return std::uint64_t{random()} << 32 | random(); };
  const std::uint64_t high = (word() & ~0xf000ULL) | 0x4000ULL;
  const std::uint64_t low = (word() & ~(3ULL << 62)) | 2ULL << 62;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xffff, high & 0xffff, low >> 48,
                     low & 0xffffffffffffULL);
}

}  // namespace cairn
