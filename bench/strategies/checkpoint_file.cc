#include "bench/strategies/checkpoint_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "bench/strategies/disk_pace.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kMagic = 0x3174706b63656863;  // "checkpt1"
constexpr std::uint64_t kPiece = 4U << 20;

struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;
};

std::string NameIn(const std::string& directory) { return directory + "/checkpoint"; }

Status WriteAll(int fd, Bytes bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "writing " + path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status ReadAll(int fd, MutableBytes bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading " + path);
    if (n == 0) return Error(StatusCode::kCorrupt, "{} ends {} bytes too soon", path, bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

Status WriteCheckpointFile(const std::string& directory, std::uint64_t step, Bytes bytes,
                           const std::shared_ptr<RateLimitedDisk>& disk) {
  const std::string path = NameIn(directory) + ".new";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  DiskPace pace(disk);
  const Header header{.step = step, .bytes = bytes.size()};
  CAIRN_RETURN_IF_ERROR(WriteAll(file.get(), std::as_bytes(std::span(&header, 1)), path));
  for (std::uint64_t at = 0; at < bytes.size(); at += kPiece) {
    const Bytes piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    // The emulated disk has it from now on: the best that early write-back can do.
    pace.Begin(piece.size());
    CAIRN_RETURN_IF_ERROR(WriteAll(file.get(), piece, path));
  }
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "fsync of " + path);
  pace.End();
  if (::rename(path.c_str(), NameIn(directory).c_str()) != 0) return ErrnoStatus(errno, "renaming " + path);
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return ErrnoStatus(errno, "opening " + directory);
  if (::fsync(folder.get()) != 0) return ErrnoStatus(errno, "fsync of " + directory);
  return {};
}

Result<std::uint64_t> ReadCheckpointFile(const std::string& directory, MutableBytes bytes) {
  const std::string path = NameIn(directory);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  Header header;
  CAIRN_RETURN_IF_ERROR(ReadAll(file.get(), std::as_writable_bytes(std::span(&header, 1)), path));
  if (header.magic != kMagic || header.bytes != bytes.size()) {
    return Error(StatusCode::kCorrupt, "{}: expected a checkpoint of {} bytes, found one of {}", path, bytes.size(),
                 header.bytes);
  }
  CAIRN_RETURN_IF_ERROR(ReadAll(file.get(), bytes, path));
  return header.step;
}

}  // namespace cairn::bench
