#include "mapped_file.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>

namespace cairn::trainer {
namespace {

[[noreturn]] void Reject(const std::string& path, int error) {
  throw std::runtime_error(path + ": cannot read: " + std::generic_category().message(error));
}

/// Closes the descriptor at the end of the scope: a mapping does not need it.
struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

}  // namespace

std::string ChecksumOf(std::span<const std::byte> bytes) {
  std::array<char, 16> sum{};
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  std::snprintf(sum.data(), sum.size(), "crc32:%08x", crc32_gzip_refl(0, data, bytes.size()));
  return sum.data();
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) Reject(path, errno);
  const Descriptor closes{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0) Reject(path, errno);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error(path + ": expected a regular file");
  if (status.st_size == 0) return;  // mmap rejects a length of 0.
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) Reject(path, errno);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace cairn::trainer
