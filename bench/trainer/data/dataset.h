#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace cairn::trainer {

/// What a model's loss takes, by name: "image" and "label" for pictures. On the CPU until the loop moves it.
using Batch = std::map<std::string, at::Tensor>;

/// Samples by number. `read` gives the same batch for the same numbers, always.
struct Dataset {
  std::string name;
  std::uint64_t size = 0;
  std::int64_t classes = 0;
  std::function<Batch(std::span<const std::uint64_t> samples)> read;
};

/// "digits", or a folder in the ImageNet layout. Throws std::runtime_error that names what was looked for and found.
Dataset OpenDataset(const std::string& what);

/// The handwritten digits: "image" [n, 3, 32, 32], "label" [n].
Dataset DigitsDataset();
/// FOLDER/CLASS/PICTURE.JPEG, or the same under FOLDER/train: classes are numbered by name. "image" [n, 3, 224, 224].
Dataset ImageFolderDataset(const std::string& folder);

}  // namespace cairn::trainer
