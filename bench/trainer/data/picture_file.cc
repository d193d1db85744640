#include "data/picture_file.h"

#include <isa-l/crc.h>

#include <bit>
#include <limits>
#include <stdexcept>

namespace cairn::trainer {

static_assert(std::endian::native == std::endian::little, "the index is used as it lies in the file");

PictureFile::PictureFile(const std::string& folder) : PictureFile(folder, JsonFile(folder + "/data.json")) {}

PictureFile::PictureFile(const std::string& folder, const JsonFile& about)
    : path_(folder + "/pictures.bin"),
      pictures_(path_),
      index_file_(folder + "/index.bin"),
      classes_(about.Count("classes")),
      checksum_(about.Text("checksum")) {
  const std::string path = folder + "/index.bin";
  const auto bytes = index_file_.bytes();
  const std::uint64_t count = about.Count("pictures");
  if (count == 0) about.Refuse("pictures", "at least 1");
  if (classes_ > std::numeric_limits<std::int32_t>::max()) about.Refuse("classes", "at most 2147483647");
  if (bytes.size() % sizeof(Entry) != 0 || bytes.size() / sizeof(Entry) != count) {
    throw std::runtime_error(path + ": expected the " + std::to_string(count) + " pictures of " +
                             std::to_string(sizeof(Entry)) + " bytes that data.json tells of, found " +
                             std::to_string(bytes.size()) + " bytes");
  }
  if (const std::string found = index_file_.Checksum(); found != checksum_) {
    about.Refuse("checksum", found + ", which index.bin has");
  }
  index_ = {reinterpret_cast<const Entry*>(bytes.data()), count};
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (index_[i].end <= end) throw std::runtime_error(path + ": " + Name(i) + ": expected it to end after it begins");
    if (index_[i].label >= classes_) {
      throw std::runtime_error(path + ": " + Name(i) + ": expected a class below data.json's " +
                               std::to_string(classes_) + ", found " + std::to_string(index_[i].label));
    }
    end = index_[i].end;
  }
  if (end != pictures_.bytes().size()) {
    throw std::runtime_error(path_ + ": expected the " + std::to_string(end) + " bytes of index.bin, found " +
                             std::to_string(pictures_.bytes().size()));
  }
}

std::string PictureFile::Name(std::uint64_t picture) const { return path_ + ": picture " + std::to_string(picture); }

std::span<const std::uint8_t> PictureFile::Read(std::uint64_t picture) const {
  const std::uint64_t begin = Begin(picture);
  const auto bytes = pictures_.bytes().subspan(begin, index_[picture].end - begin);
  const std::span file(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  if (crc32_gzip_refl(0, file.data(), file.size()) != index_[picture].crc32) {
    throw std::runtime_error(Name(picture) +
                             ": expected the checksum of index.bin, found another: the file is damaged");
  }
  return file;
}

}  // namespace cairn::trainer
