#pragma once

#include <cstdint>
#include <vector>

namespace cairn::trainer {

/// A JPEG of one colour all over: three components for RGB, one for grey.
std::vector<std::uint8_t> EncodeJpeg(int width, int height, const std::vector<std::uint8_t>& colour);

}  // namespace cairn::trainer
