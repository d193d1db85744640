#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::trainer {

struct Picture {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  ///< Row by row, three bytes a pixel.
};

/// Decodes a JPEG, grey and CMYK ones too. Throws std::runtime_error with libjpeg's own words for what is none, is cut
/// short or is damaged, and for a picture of more than 64 million pixels.
Picture DecodeJpeg(std::span<const std::uint8_t> file);

/// Scales the picture so that its shorter side is `resized` (bilinear with support, as for every antialiased resize),
/// cuts the middle `side` x `side` out and normalises each channel by ImageNet's mean and deviation.
/// `out` takes 3 * side * side values, channel by channel.
void PrepareForImageNet(const Picture& picture, int resized, int side, std::span<float> out);

}  // namespace cairn::trainer
