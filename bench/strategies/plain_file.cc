#include "bench/strategies/plain_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/status_macros.h"

namespace cairn::bench {

Result<UniqueFd> LayOut(const std::string& path, std::uint64_t bytes) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  const int refused = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  if (refused != 0) return ErrnoStatus(refused, "allocating " + path);
  const std::vector<std::byte> zeros(1U << 20);
  for (std::uint64_t at = 0; at < bytes; at += zeros.size()) {
    const Bytes piece(zeros.data(), std::min<std::uint64_t>(zeros.size(), bytes - at));
    CAIRN_RETURN_IF_ERROR(WriteAt(file.get(), at, piece, path));
  }
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "fsync of " + path);
  return file;
}

Status WriteAt(int fd, std::uint64_t offset, Bytes bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "writing " + path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

void StartWriteBack(int fd, std::uint64_t offset, std::uint64_t bytes) {
  ::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

Status ReadAt(int fd, std::uint64_t offset, MutableBytes bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading " + path);
    if (n == 0) return Error(StatusCode::kCorrupt, "{} ends at {}, {} bytes too soon", path, offset, bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Status SyncDirectory(const std::string& directory) {
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return ErrnoStatus(errno, "opening " + directory);
  if (::fsync(folder.get()) != 0) return ErrnoStatus(errno, "fsync of " + directory);
  return {};
}

}  // namespace cairn::bench
