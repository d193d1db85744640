#include <ATen/ops/empty.h>

#include "data/dataset.h"
#include "data/synthetic.h"

namespace cairn::trainer {

Dataset SyntheticPictures() {
  constexpr std::uint64_t kSize = std::uint64_t{1} << 16;
  constexpr std::uint64_t kClasses = 1000;
  constexpr std::int64_t kSide = 224;
  constexpr std::uint64_t kValues = std::uint64_t{3} * kSide * kSide;
  const auto read = [](std::span<const std::uint64_t> samples) {
    const auto count = static_cast<std::int64_t>(samples.size());
    at::Tensor image = at::empty({count, 3, kSide, kSide}, at::kFloat);
    at::Tensor label = at::empty({count}, at::kLong);
    auto* values = image.mutable_data_ptr<float>();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      label.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(Noise(samples[i]) % kClasses);
      for (std::uint64_t k = 0; k < kValues; ++k) {
        constexpr double kHalf = 0x1p63;
        *values++ = static_cast<float>(static_cast<double>(Noise(samples[i] * kValues + k)) / kHalf - 1);
      }
    }
    return Batch{{"image", image}, {"label", label}};
  };
  return {.name = "synthetic pictures", .shape = {.classes = kClasses}, .size = kSize, .read = read};
}

}  // namespace cairn::trainer
