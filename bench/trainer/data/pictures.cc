#include <ATen/ops/empty.h>

#include <array>
#include <memory>

#include "data/dataset.h"
#include "data/picture_file.h"

namespace cairn::trainer {
namespace {

/// Normalises each channel by ImageNet's mean and deviation. `out` is channel-major.
void Normalise(std::span<const std::uint8_t> pixels, std::span<float> out) {
  constexpr std::array<float, 3> kMean{0.485F, 0.456F, 0.406F};
  constexpr std::array<float, 3> kDeviation{0.229F, 0.224F, 0.225F};
  const std::size_t plane = pixels.size() / 3;
  for (std::size_t i = 0; i < plane; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      out[c * plane + i] = (static_cast<float>(pixels[3 * i + c]) / 255.0F - kMean[c]) / kDeviation[c];
    }
  }
}

}  // namespace

Dataset PicturesDataset(const std::string& folder) {
  const auto file = std::make_shared<const PictureFile>(folder);
  const auto read = [file](std::span<const std::uint64_t> numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    constexpr std::int64_t kSide = PictureFile::kSide;
    at::Tensor image = at::empty({count, 3, kSide, kSide}, at::kFloat);
    at::Tensor label = at::empty({count}, at::kLong);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      Normalise(file->Read(numbers[i]),
                {image.mutable_data_ptr<float>() + i * PictureFile::kBytes, PictureFile::kBytes});
      label.mutable_data_ptr<std::int64_t>()[i] = file->label(numbers[i]);
    }
    return Batch{{"image", image}, {"label", label}};
  };
  return {.name = "pictures " + file->checksum(),
          .shape = {.classes = file->classes()},
          .size = file->size(),
          .read = read};
}

}  // namespace cairn::trainer
