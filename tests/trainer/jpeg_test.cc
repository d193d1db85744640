#include "data/jpeg.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/encode_jpeg.h"

namespace cairn::trainer {
namespace {

TEST(Jpeg, DecodesColourAndSize) {
  const Picture picture = DecodeJpeg(EncodeJpeg(40, 24, {200, 100, 50}));

  EXPECT_EQ(picture.width, 40);
  EXPECT_EQ(picture.height, 24);
  ASSERT_EQ(picture.rgb.size(), 40U * 24 * 3);
  EXPECT_NEAR(picture.rgb[0], 200, 3);
  EXPECT_NEAR(picture.rgb[1], 100, 3);
  EXPECT_NEAR(picture.rgb[2], 50, 3);
}

TEST(Jpeg, DecodesGreyAsRgb) {
  const Picture picture = DecodeJpeg(EncodeJpeg(16, 16, {128}));

  ASSERT_EQ(picture.rgb.size(), 16U * 16 * 3);
  EXPECT_NEAR(picture.rgb[0], 128, 2);
  EXPECT_EQ(picture.rgb[0], picture.rgb[1]);
  EXPECT_EQ(picture.rgb[1], picture.rgb[2]);
}

TEST(Jpeg, RefusesWhatIsNoneOrCutShort) {
  const std::vector<std::uint8_t> text = {'n', 'o', ' ', 'J', 'P', 'E', 'G'};
  std::vector<std::uint8_t> cut = EncodeJpeg(64, 64, {1, 2, 3});
  cut.resize(cut.size() / 2);

  EXPECT_THROW(DecodeJpeg(text), std::runtime_error);
  EXPECT_THROW(DecodeJpeg(cut), std::runtime_error);
  EXPECT_THROW(DecodeJpeg({}), std::runtime_error);
}

TEST(Jpeg, PreparedPictureIsNormalisedWhateverItsSize) {
  for (const auto& [width, height] : {std::pair{300, 500}, std::pair{60, 40}, std::pair{256, 256}}) {
    const Picture picture{.width = width,
                          .height = height,
                          .rgb = std::vector<std::uint8_t>(static_cast<std::size_t>(width) * height * 3, 255)};

    std::vector<float> image(std::size_t{3} * 224 * 224);
    PrepareForImageNet(picture, 256, 224, image);

    EXPECT_NEAR(image.front(), (1.0F - 0.485F) / 0.229F, 1e-4);
    EXPECT_NEAR(image[224 * 224], (1.0F - 0.456F) / 0.224F, 1e-4);
    EXPECT_NEAR(image.back(), (1.0F - 0.406F) / 0.225F, 1e-4);
  }
}

}  // namespace
}  // namespace cairn::trainer
