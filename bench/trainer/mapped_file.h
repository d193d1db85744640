#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace cairn::trainer {

/// zlib's CRC-32 in data.json's notation: "crc32:" and eight hexadecimal digits.
std::string ChecksumOf(std::span<const std::byte> bytes);

/// A regular file, mapped for reading. If another process truncates it meanwhile, reading raises SIGBUS, as with any
/// mapping.
class MappedFile {
 public:
  /// Throws std::runtime_error, naming file and reason, if the file cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Page-aligned.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::string Checksum() const { return ChecksumOf(bytes_); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace cairn::trainer
