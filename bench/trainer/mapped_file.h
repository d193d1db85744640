#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace cairn::trainer {

/// CRC-32 as zlib has it, as data.json spells it: "crc32:" and eight hexadecimal digits.
std::string ChecksumOf(std::span<const std::byte> bytes);

/// A regular file's bytes, mapped for reading. Whoever cuts the file meanwhile ends the process, as with any mapping.
class MappedFile {
 public:
  /// Throws std::runtime_error that names the file and says why it cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Begins at a page.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::string Checksum() const { return ChecksumOf(bytes_); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace cairn::trainer
