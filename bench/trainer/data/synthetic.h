#pragma once

#include <cstdint>

namespace cairn::trainer {

/// A pseudo-random number that depends on `index` only (splitmix64's finisher: Steele et al., 2014).
constexpr std::uint64_t Noise(std::uint64_t index) {
  std::uint64_t x = (index + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace cairn::trainer
