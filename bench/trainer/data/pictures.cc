#include <ATen/ops/empty.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/jpeg.h"
#include "data/picture_file.h"
#include "mapped_file.h"

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

/// Pictures by number, wherever they lie.
struct Pictures {
  std::string name;
  std::int64_t classes = 0;
  std::uint64_t size = 0;
  std::function<std::int64_t(std::uint64_t number)> label;
  std::function<std::vector<float>(std::uint64_t number)> values;
};

constexpr int kSide = 224;

/// What is left of a JPEG file; `name` is for the error where it is none.
std::vector<float> ValuesOf(std::span<const std::uint8_t> file, const std::string& name) {
  std::vector<float> values(std::size_t{3} * kSide * kSide);
  try {
    PrepareForImageNet(DecodeJpeg(file), kSide * 8 / 7, kSide, values);
  } catch (const std::runtime_error& why) {
    throw std::runtime_error(name + ": not a sound JPEG picture: " + why.what());
  }
  return values;
}

std::vector<float> ReadPicture(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return ValuesOf(bytes, path.string());
}

Dataset DatasetOf(const Pictures& pictures) {
  const auto read = [pictures](std::span<const std::uint64_t> numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    at::Tensor image = at::empty({count, 3, kSide, kSide}, at::kFloat);
    at::Tensor label = at::empty({count}, at::kLong);
    auto* values = image.mutable_data_ptr<float>();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      values = std::ranges::copy(pictures.values(numbers[i]), values).out;
      label.mutable_data_ptr<std::int64_t>()[i] = pictures.label(numbers[i]);
    }
    return Batch{{"image", image}, {"label", label}};
  };
  return {.name = pictures.name, .shape = {.classes = pictures.classes}, .size = pictures.size, .read = read};
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

  std::string listed;
  for (const Sample& sample : *samples) {
    listed += fs::relative(sample.path, root).string() + " " + std::to_string(fs::file_size(sample.path)) + "\n";
  }
  // By what it holds, not by where it lies.
  return DatasetOf({.name = "picture folder " + ChecksumOf(std::as_bytes(std::span(listed))),
                    .classes = classes,
                    .size = samples->size(),
                    .label = [samples](std::uint64_t number) { return (*samples)[number].label; },
                    .values = [samples](std::uint64_t number) { return ReadPicture((*samples)[number].path); }});
}

Dataset PreparedPictures(const std::string& folder) {
  const auto file = std::make_shared<const PictureFile>(folder);
  return DatasetOf(
      {.name = "pictures " + file->checksum(),
       .classes = file->classes(),
       .size = file->size(),
       .label = [file](std::uint64_t number) { return file->label(number); },
       .values = [file](std::uint64_t number) { return ValuesOf(file->Read(number), file->Name(number)); }});
}

}  // namespace cairn::trainer
