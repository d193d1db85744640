#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace cairn::trainer {

/// One handwritten digit as data/digits.bin has it (data/README.md tells the source and the format).
struct Digit {
  static constexpr int kSide = 8;
  std::array<std::uint8_t, 64> pixels;  ///< Row by row, 0 (paper) to 16 (ink).
  std::uint8_t label;                   ///< 0 to 9.
};

/// All digits; the file is part of the binary.
std::span<const Digit> AllDigits();

/// Enlarges a digit to `side` x `side` by bilinear interpolation (pixel centres half a pixel in), scaled from -1
/// (paper) to 1 (ink). `out` takes side * side values, row by row.
void EnlargeDigit(const Digit& digit, int side, std::span<float> out);

}  // namespace cairn::trainer
