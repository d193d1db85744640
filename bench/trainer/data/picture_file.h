#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "json_file.h"
#include "mapped_file.h"

namespace cairn::trainer {

/// A folder written by `scripts/prepare-data pictures`: pictures.bin with the pixels of each picture, and index.bin
/// with its checksum and class. Both are mapped. data.json describes them.
class PictureFile {
 public:
  /// Width and height in pixels.
  static constexpr std::uint64_t kSide = 224;
  /// Bytes of a picture: row by row, red, green and blue of each pixel.
  static constexpr std::size_t kBytes = kSide * kSide * 3;

  /// Checks everything but the pixels. Throws std::runtime_error, naming file and field, for a difference from
  /// data.json.
  explicit PictureFile(const std::string& folder);

  [[nodiscard]] std::uint64_t size() const { return index_.size(); }
  [[nodiscard]] std::int64_t classes() const { return static_cast<std::int64_t>(classes_); }
  /// The checksum of index.bin, and so of all pictures: "crc32:" and eight hexadecimal digits.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  [[nodiscard]] std::int64_t label(std::uint64_t picture) const { return index_[picture].label; }
  /// The picture's kBytes. Throws std::runtime_error if their checksum differs from the index's.
  [[nodiscard]] std::span<const std::uint8_t> Read(std::uint64_t picture) const;

 private:
  /// A little-endian record of index.bin.
  struct Entry {
    /// zlib's CRC-32 of the pixels.
    std::uint32_t crc32;
    std::uint32_t label;
  };

  PictureFile(const std::string& folder, const JsonFile& about);

  std::string path_;
  MappedFile pictures_;
  MappedFile index_file_;
  std::uint64_t classes_;
  std::string checksum_;
  std::span<const Entry> index_;
};

}  // namespace cairn::trainer
