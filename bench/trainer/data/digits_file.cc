#include "data/digits_file.h"

#include <algorithm>
#include <cmath>

// NOLINTNEXTLINE(hicpp-no-assembler)
asm(".pushsection .rodata\n"
    ".globl cairn_digits_begin\n"
    ".globl cairn_digits_end\n"
    "cairn_digits_begin:\n"
    ".incbin \"" CAIRN_DIGITS_FILE
    "\"\n"
    "cairn_digits_end:\n"
    ".popsection\n");

extern "C" {
extern const cairn::trainer::Digit cairn_digits_begin[];  // NOLINT(modernize-avoid-c-arrays)
extern const cairn::trainer::Digit cairn_digits_end[];    // NOLINT(modernize-avoid-c-arrays)
}

namespace cairn::trainer {
namespace {

static_assert(sizeof(Digit) == 65 && alignof(Digit) == 1, "a Digit is a record of the file");

/// The two source pixels beside a target pixel, and its distance from the first.
struct Between {
  int first, second;
  float share;
};
Between Locate(int target, int side) {
  const float scale = static_cast<float>(Digit::kSide) / static_cast<float>(side);
  const float source = std::max(0.0F, (static_cast<float>(target) + 0.5F) * scale - 0.5F);
  const int first = static_cast<int>(source);
  return {first, std::min(first + 1, Digit::kSide - 1), source - static_cast<float>(first)};
}

}  // namespace

std::span<const Digit> AllDigits() { return {cairn_digits_begin, cairn_digits_end}; }

void EnlargeDigit(const Digit& digit, int side, std::span<float> out) {
  const auto pixel = [&](int row, int column) { return static_cast<float>(digit.pixels[row * Digit::kSide + column]); };
  for (int y = 0; y < side; ++y) {
    const Between rows = Locate(y, side);
    for (int x = 0; x < side; ++x) {
      const Between columns = Locate(x, side);
      const float upper = std::lerp(pixel(rows.first, columns.first), pixel(rows.first, columns.second), columns.share);
      const float lower =
          std::lerp(pixel(rows.second, columns.first), pixel(rows.second, columns.second), columns.share);
      out[static_cast<std::size_t>(y) * side + x] = std::lerp(upper, lower, rows.share) / 8.0F - 1.0F;
    }
  }
}

}  // namespace cairn::trainer
