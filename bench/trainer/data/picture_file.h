#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "json_file.h"
#include "mapped_file.h"

namespace cairn::trainer {

/// A folder that `scripts/prepare-data pictures` wrote: pictures.bin, the pixels of each picture, and index.bin, its
/// checksum and class; both mapped. data.json says what is in them.
class PictureFile {
 public:
  /// Pixels in a row, and rows.
  static constexpr std::uint64_t kSide = 224;
  /// Bytes of a picture: row by row, red, green and blue of each pixel.
  static constexpr std::size_t kBytes = kSide * kSide * 3;

  /// Checks everything but the pixels: throws std::runtime_error, naming file and field, for what differs from
  /// data.json.
  explicit PictureFile(const std::string& folder);

  [[nodiscard]] std::uint64_t size() const { return index_.size(); }
  [[nodiscard]] std::int64_t classes() const { return static_cast<std::int64_t>(classes_); }
  /// Of index.bin, and so of every picture: "crc32:" and eight hexadecimal digits.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  [[nodiscard]] std::int64_t label(std::uint64_t picture) const { return index_[picture].label; }
  /// The picture's kBytes. Throws std::runtime_error where their checksum differs from the index's.
  [[nodiscard]] std::span<const std::uint8_t> Read(std::uint64_t picture) const;

 private:
  /// As index.bin has it, little-endian.
  struct Entry {
    /// As zlib computes it.
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
