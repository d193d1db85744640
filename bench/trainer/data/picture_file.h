#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "json_file.h"
#include "mapped_file.h"

namespace cairn::trainer {

/// A folder that `scripts/prepare-data pictures` wrote: pictures.bin, JPEG files one behind the other, and index.bin,
/// which says where each ends; both mapped. data.json says what is in them.
class PictureFile {
 public:
  /// Checks everything but the pictures' own bytes: throws std::runtime_error, naming file and field, for what is not
  /// as data.json says.
  explicit PictureFile(const std::string& folder);

  [[nodiscard]] std::uint64_t size() const { return index_.size(); }
  [[nodiscard]] std::int64_t classes() const { return static_cast<std::int64_t>(classes_); }
  /// Of index.bin, and so of every picture: "crc32:" and eight hexadecimal digits.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  [[nodiscard]] std::int64_t label(std::uint64_t picture) const { return index_[picture].label; }
  /// What an error about the picture names.
  [[nodiscard]] std::string Name(std::uint64_t picture) const;
  /// A JPEG file. Throws std::runtime_error where its bytes have another checksum than the index.
  [[nodiscard]] std::span<const std::uint8_t> Read(std::uint64_t picture) const;

 private:
  /// As index.bin has it, little-endian.
  struct Entry {
    std::uint64_t end;    ///< In pictures.bin, where the next begins.
    std::uint32_t crc32;  ///< As zlib has it.
    std::uint32_t label;
  };

  PictureFile(const std::string& folder, const JsonFile& about);
  [[nodiscard]] std::uint64_t Begin(std::uint64_t picture) const { return picture == 0 ? 0 : index_[picture - 1].end; }

  std::string path_;
  MappedFile pictures_;
  MappedFile index_file_;
  std::uint64_t classes_;
  std::string checksum_;
  std::span<const Entry> index_;
};

}  // namespace cairn::trainer
