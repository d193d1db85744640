#include "data/jpeg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <stdexcept>
#include <string>

// After cstdio, which it needs and does not include.
#include <jerror.h>
#include <jpeglib.h>

namespace cairn::trainer {
namespace {

/// libjpeg reports through this; its errors come back by longjmp, because no exception may cross C code.
struct ErrorHandler {
  jpeg_error_mgr manager;
  std::jmp_buf resume;
  std::array<char, JMSG_LENGTH_MAX> message;
};

void Fail(j_common_ptr info) {
  auto* handler = reinterpret_cast<ErrorHandler*>(info->err);
  handler->manager.format_message(info, handler->message.data());
  std::longjmp(handler->resume, 1);  // NOLINT(cert-err52-cpp)
}

/// libjpeg only warns where pixels are missing, and makes them up. Harmless warnings stay so.
void FailOnLostPixels(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE)) Fail(info);
}

/// Returns false with the handler's message set. Holds nothing that a longjmp would leak.
bool Decode(std::span<const std::uint8_t> file, ErrorHandler& handler, Picture& picture, bool& cmyk) {
  jpeg_decompress_struct decoder{};
  decoder.err = jpeg_std_error(&handler.manager);
  handler.manager.error_exit = Fail;
  handler.manager.emit_message = FailOnLostPixels;
  if (setjmp(handler.resume) != 0) {  // NOLINT(cert-err52-cpp)
    jpeg_destroy_decompress(&decoder);
    return false;
  }
  jpeg_create_decompress(&decoder);
  jpeg_mem_src(&decoder, file.data(), file.size());
  jpeg_read_header(&decoder, TRUE);
  constexpr std::uint64_t kMostPixels = 64'000'000;
  if (std::uint64_t{decoder.image_width} * decoder.image_height > kMostPixels) {
    ERREXIT1(&decoder, JERR_IMAGE_TOO_BIG, static_cast<int>(decoder.image_width));
  }
  cmyk = decoder.jpeg_color_space == JCS_CMYK || decoder.jpeg_color_space == JCS_YCCK;
  decoder.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&decoder);
  picture.width = static_cast<int>(decoder.output_width);
  picture.height = static_cast<int>(decoder.output_height);
  const std::size_t stride = std::size_t{decoder.output_width} * decoder.output_components;
  picture.rgb.resize(stride * decoder.output_height);
  while (decoder.output_scanline < decoder.output_height) {
    JSAMPROW row = picture.rgb.data() + stride * decoder.output_scanline;
    jpeg_read_scanlines(&decoder, &row, 1);
  }
  jpeg_finish_decompress(&decoder);
  jpeg_destroy_decompress(&decoder);
  return true;
}

/// Adobe's CMYK files hold 255 minus the ink, so that a product is the light that is left.
void CmykToRgb(std::vector<std::uint8_t>& pixels) {
  const std::size_t count = pixels.size() / 4;
  for (std::size_t i = 0; i < count; ++i) {
    const int black = pixels[4 * i + 3];
    for (int c = 0; c < 3; ++c) pixels[3 * i + c] = static_cast<std::uint8_t>(pixels[4 * i + c] * black / 255);
  }
  pixels.resize(count * 3);
}

/// The source pixels that make up one target pixel: the triangle filter, as wide as the scale is large.
struct Taps {
  int first = 0;
  std::vector<float> weights;
};
std::vector<Taps> MakeTaps(int source, int resized, int begin, int count) {
  std::vector<Taps> taps(count);
  const float scale = static_cast<float>(source) / static_cast<float>(resized);
  const float reach = std::max(scale, 1.0F);
  for (int i = 0; i < count; ++i) {
    const float centre = (static_cast<float>(begin + i) + 0.5F) * scale;
    const int first = std::max(0, static_cast<int>(std::lround(centre - reach)));
    const int last = std::min(source, static_cast<int>(std::lround(centre + reach)));
    taps[i].first = first;
    float sum = 0;
    for (int s = first; s < last; ++s) {
      const float weight = std::max(0.0F, 1.0F - std::abs((static_cast<float>(s) + 0.5F - centre) / reach));
      taps[i].weights.push_back(weight);
      sum += weight;
    }
    for (float& weight : taps[i].weights) weight /= sum;
  }
  return taps;
}

}  // namespace

Picture DecodeJpeg(std::span<const std::uint8_t> file) {
  ErrorHandler handler{};
  Picture picture;
  bool cmyk = false;
  if (!Decode(file, handler, picture, cmyk)) throw std::runtime_error(handler.message.data());
  if (cmyk) CmykToRgb(picture.rgb);
  return picture;
}

void PrepareForImageNet(const Picture& picture, int resized, int side, std::span<float> out) {
  constexpr std::array<float, 3> kMean{0.485F, 0.456F, 0.406F};
  constexpr std::array<float, 3> kDeviation{0.229F, 0.224F, 0.225F};
  const int shorter = std::min(picture.width, picture.height);
  const auto scaled = [&](int length) {
    return static_cast<int>(static_cast<std::int64_t>(length) * resized / shorter);
  };
  const int width = scaled(picture.width);
  const int height = scaled(picture.height);
  const std::vector<Taps> columns = MakeTaps(picture.width, width, (width - side) / 2, side);
  const std::vector<Taps> rows = MakeTaps(picture.height, height, (height - side) / 2, side);

  const std::size_t plane = static_cast<std::size_t>(side) * side;
  std::vector<float> line(static_cast<std::size_t>(picture.width) * 3);
  for (int y = 0; y < side; ++y) {
    std::fill(line.begin(), line.end(), 0.0F);
    for (std::size_t t = 0; t < rows[y].weights.size(); ++t) {
      const std::uint8_t* source = picture.rgb.data() + (rows[y].first + t) * line.size();
      for (std::size_t i = 0; i < line.size(); ++i) line[i] += rows[y].weights[t] * static_cast<float>(source[i]);
    }
    for (int x = 0; x < side; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        float value = 0;
        for (std::size_t t = 0; t < columns[x].weights.size(); ++t) {
          value += columns[x].weights[t] * line[(columns[x].first + t) * 3 + c];
        }
        out[c * plane + static_cast<std::size_t>(y) * side + x] = (value / 255.0F - kMean[c]) / kDeviation[c];
      }
    }
  }
}

}  // namespace cairn::trainer
