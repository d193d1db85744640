#include "trainer/encode_jpeg.h"

#include <cstdio>
#include <cstdlib>

// After cstdio, which it needs and does not include.
#include <jpeglib.h>

namespace cairn::trainer {

std::vector<std::uint8_t> EncodeJpeg(int width, int height, const std::vector<std::uint8_t>& colour) {
  jpeg_error_mgr errors{};
  jpeg_compress_struct encoder{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type.
  jpeg_mem_dest(&encoder, &buffer, &size);
  encoder.image_width = width;
  encoder.image_height = height;
  encoder.input_components = static_cast<int>(colour.size());
  encoder.in_color_space = colour.size() == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, 100, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  std::vector<std::uint8_t> line;
  for (int x = 0; x < width; ++x) line.insert(line.end(), colour.begin(), colour.end());
  JSAMPROW row = line.data();
  while (encoder.next_scanline < encoder.image_height) jpeg_write_scanlines(&encoder, &row, 1);
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  std::vector<std::uint8_t> file(buffer, buffer + size);
  std::free(buffer);  // NOLINT(cppcoreguidelines-no-malloc): libjpeg allocated it.
  return file;
}

}  // namespace cairn::trainer
