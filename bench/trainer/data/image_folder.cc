#include <ATen/ops/empty.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/jpeg.h"

namespace cairn::trainer {
namespace {

namespace fs = std::filesystem;

bool IsJpeg(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpeg" || extension == ".jpg";
}

/// Sorted, because a directory's own order differs between machines, and a sample's number must not.
template <typename Wanted>
std::vector<fs::path> SortedEntries(const fs::path& folder, const Wanted& wanted) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (wanted(entry)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Sample {
  fs::path path;
  std::int64_t label;
};

void ReadPicture(const fs::path& path, int side, std::span<float> out) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  try {
    PrepareForImageNet(DecodeJpeg(bytes), side * 8 / 7, side, out);
  } catch (const std::runtime_error& why) {
    throw std::runtime_error(path.string() + ": not a sound JPEG picture: " + why.what());
  }
}

}  // namespace

Dataset ImageFolderDataset(const std::string& folder) {
  const fs::path root = fs::is_directory(fs::path(folder) / "train") ? fs::path(folder) / "train" : fs::path(folder);
  const auto is_directory = [](const fs::directory_entry& entry) { return entry.is_directory(); };
  const auto is_picture = [](const fs::directory_entry& entry) {
    return entry.is_regular_file() && IsJpeg(entry.path());
  };
  auto samples = std::make_shared<std::vector<Sample>>();
  std::int64_t classes = 0;
  for (const fs::path& of_class : SortedEntries(root, is_directory)) {
    for (fs::path& picture : SortedEntries(of_class, is_picture)) samples->push_back({std::move(picture), classes});
    ++classes;
  }
  if (samples->empty()) {
    throw std::runtime_error(root.string() + ": expected CLASS/PICTURE.JPEG in it, found " + std::to_string(classes) +
                             " folders and no picture in them");
  }

  const auto read = [samples](std::span<const std::uint64_t> numbers) {
    constexpr int kSide = 224;
    constexpr std::size_t kValues = std::size_t{3} * kSide * kSide;
    const auto count = static_cast<std::int64_t>(numbers.size());
    at::Tensor image = at::empty({count, 3, kSide, kSide}, at::kFloat);
    at::Tensor label = at::empty({count}, at::kLong);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const Sample& sample = (*samples)[numbers[i]];
      ReadPicture(sample.path, kSide, {image.mutable_data_ptr<float>() + i * kValues, kValues});
      label.mutable_data_ptr<std::int64_t>()[i] = sample.label;
    }
    return Batch{{"image", image}, {"label", label}};
  };
  return {.name = folder, .shape = {.classes = classes}, .size = samples->size(), .read = read};
}

}  // namespace cairn::trainer
