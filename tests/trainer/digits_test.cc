#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "data/digits_file.h"

namespace cairn::trainer {
namespace {

TEST(Digits, MatchTheSource) {
  const auto digits = AllDigits();

  // Counts of each label in the UCI test set, and its first row.
  ASSERT_EQ(digits.size(), 1797U);
  std::array<int, 10> counts{};
  for (const Digit& digit : digits) {
    ASSERT_LT(digit.label, 10);
    for (const auto pixel : digit.pixels) ASSERT_LE(pixel, 16);
    ++counts[digit.label];
  }
  EXPECT_EQ(counts, (std::array<int, 10>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}));
  EXPECT_EQ(digits[0].label, 0);
  EXPECT_EQ(digits[0].pixels[2], 5);
  EXPECT_EQ(digits[0].pixels[3], 13);
}

TEST(Digits, EnlargingKeepsCornersRangeAndOrientation) {
  Digit digit{};
  digit.pixels[7] = 16;  // Upper right.

  std::vector<float> image(32 * 32);
  EnlargeDigit(digit, 32, image);

  EXPECT_EQ(image[0], -1.0F);
  EXPECT_EQ(image[31], 1.0F);
  EXPECT_EQ(image[31 * 32 + 31], -1.0F);
  for (const float value : image) {
    EXPECT_GE(value, -1.0F);
    EXPECT_LE(value, 1.0F);
  }
}

TEST(Digits, EnlargingToTheSameSizeChangesNothing) {
  const Digit& digit = AllDigits()[5];

  std::vector<float> image(64);
  EnlargeDigit(digit, 8, image);

  for (std::size_t i = 0; i < image.size(); ++i) {
    EXPECT_EQ(image[i], static_cast<float>(digit.pixels[i]) / 8.0F - 1.0F);
  }
}

}  // namespace
}  // namespace cairn::trainer
