#include "data/picture_file.h"

#include <isa-l/crc.h>

#include <bit>
#include <limits>
#include <stdexcept>

namespace cairn::trainer {

static_assert(std::endian::native == std::endian::little, "the index is used in place");

PictureFile::PictureFile(const std::string& folder) : PictureFile(folder, JsonFile(folder + "/data.json")) {}

PictureFile::PictureFile(const std::string& folder, const JsonFile& about)
    : path_(folder + "/pictures.bin"),
      pictures_(path_),
      index_file_(folder + "/index.bin"),
      classes_(about.Count("classes")),
      checksum_(about.Text("checksum")) {
  if (about.Count("side") != kSide) about.Reject("side", std::to_string(kSide));
  const auto bytes = index_file_.bytes();
  const std::uint64_t count = about.Count("pictures");
  if (count == 0) about.Reject("pictures", "at least 1");
  if (classes_ > std::numeric_limits<std::int32_t>::max()) about.Reject("classes", "at most 2147483647");
  const auto expect_bytes = [&](const std::string& path, std::size_t found, std::size_t each) {
    if (found % each == 0 && found / each == count) return;
    throw std::runtime_error(path + ": expected " + std::to_string(count) + " pictures of " + std::to_string(each) +
                             " bytes, according to data.json, found " + std::to_string(found) + " bytes");
  };
  expect_bytes(folder + "/index.bin", bytes.size(), sizeof(Entry));
  expect_bytes(path_, pictures_.bytes().size(), kBytes);
  if (const std::string found = index_file_.Checksum(); found != checksum_) {
    about.Reject("checksum", found + ", as of index.bin");
  }
  index_ = {reinterpret_cast<const Entry*>(bytes.data()), count};
  for (std::uint64_t i = 0; i < count; ++i) {
    if (index_[i].label >= classes_) {
      throw std::runtime_error(folder + "/index.bin: picture " + std::to_string(i) +
                               ": expected a class below data.json's " + std::to_string(classes_) + ", found " +
                               std::to_string(index_[i].label));
    }
  }
}

std::span<const std::uint8_t> PictureFile::Read(std::uint64_t picture) const {
  const auto bytes = pictures_.bytes().subspan(picture * kBytes, kBytes);
  const std::span pixels(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  if (crc32_gzip_refl(0, pixels.data(), pixels.size()) != index_[picture].crc32) {
    throw std::runtime_error(path_ + ": picture " + std::to_string(picture) +
                             ": its checksum differs from index.bin's: the file is damaged");
  }
  return pixels;
}

}  // namespace cairn::trainer
