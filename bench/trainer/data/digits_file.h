#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace cairn::trainer {

/// One handwritten digit in the format of data/digits.bin (source and format: data/README.md).
struct Digit {
  static constexpr int kSide = 8;
  /// Row by row, 0 (paper) to 16 (ink).
  std::array<std::uint8_t, 64> pixels;
  /// 0 to 9.
  std::uint8_t label;
};

/// All digits; the file is embedded in the binary.
std::span<const Digit> AllDigits();

/// Enlarges a digit to `side` x `side` by bilinear interpolation (pixel centres half a pixel in), scaled from -1
/// (paper) to 1 (ink). `out` holds side * side values, row by row.
void EnlargeDigit(const Digit& digit, int side, std::span<float> out);

}  // namespace cairn::trainer
