#include <ATen/ops/empty.h>

#include "data/dataset.h"
#include "data/digits_file.h"

namespace cairn::trainer {

Dataset DigitsDataset() {
  constexpr int kSide = 32;
  const auto read = [](std::span<const std::uint64_t> samples) {
    const auto count = static_cast<std::int64_t>(samples.size());
    at::Tensor image = at::empty({count, 1, kSide, kSide}, at::kFloat);
    at::Tensor label = at::empty({count}, at::kLong);
    constexpr std::size_t kPixels = static_cast<std::size_t>(kSide) * kSide;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Digit& digit = AllDigits()[samples[i]];
      EnlargeDigit(digit, kSide, {image.mutable_data_ptr<float>() + i * kPixels, kPixels});
      label.mutable_data_ptr<std::int64_t>()[i] = digit.label;
    }
    return Batch{{"image", image.expand({count, 3, kSide, kSide}).contiguous()}, {"label", label}};
  };
  return {.name = "digits", .shape = {.classes = 10}, .size = AllDigits().size(), .read = read};
}

}  // namespace cairn::trainer
