#include "bench/strategies/checkpoint_file.h"

#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): renameat2
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "bench/emulation/disk_pace.h"
#include "bench/strategies/nodes.h"
#include "bench/strategies/plain_file.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kMagic = 0x3174706b63656863;  // "checkpt1"
constexpr std::uint64_t kPiece = 4U << 20;

struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;
};

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

CheckpointFile::CheckpointFile(const std::string& directory, std::uint64_t bytes, std::shared_ptr<RateLimitedDisk> disk)
    : directory_(directory),
      bytes_(bytes),
      path_(directory + "/checkpoint"),
      spare_(directory + "/checkpoint.spare"),
      later_(directory + "/checkpoint.later"),
      disk_(std::move(disk)) {}

Result<std::unique_ptr<CheckpointFile>> CheckpointFile::Open(const std::string& directory, std::uint64_t bytes,
                                                             std::shared_ptr<RateLimitedDisk> disk) {
  std::unique_ptr<CheckpointFile> file(new CheckpointFile(directory, bytes, std::move(disk)));
  if (!Exists(file->spare_)) CAIRN_RETURN_IF_ERROR(LayOut(file->spare_, kBlock + bytes).status());
  if (!Exists(file->path_)) CAIRN_RETURN_IF_ERROR(LayOut(file->later_, kBlock + bytes).status());
  return file;
}

Status CheckpointFile::Write(std::uint64_t step, Bytes bytes) {
  const UniqueFd file(::open(spare_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + spare_);
  DiskPace pace(disk_);
  const Header header{.step = step, .bytes = bytes.size()};
  CAIRN_RETURN_IF_ERROR(WriteAt(file.get(), 0, std::as_bytes(std::span(&header, 1)), spare_));
  for (std::uint64_t at = 0; at < bytes.size(); at += kPiece) {
    const Bytes piece = bytes.subspan(at, std::min<std::uint64_t>(kPiece, bytes.size() - at));
    CAIRN_RETURN_IF_ERROR(WriteAt(file.get(), kBlock + at, piece, spare_));
    pace.Begin(piece.size());
    StartWriteBack(file.get(), kBlock + at, piece.size());
  }
  pace.End();
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "fsync of " + spare_);
  CAIRN_RETURN_IF_ERROR(Rename());
  return SyncDirectory(directory_);
}

Status CheckpointFile::Rename() const {
  if (Exists(path_)) {
    if (::renameat2(AT_FDCWD, spare_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) return {};
  } else if (::rename(spare_.c_str(), path_.c_str()) == 0 && ::rename(later_.c_str(), spare_.c_str()) == 0) {
    return {};
  }
  return ErrnoStatus(errno, "renaming " + spare_ + " to " + path_);
}

Result<std::uint64_t> CheckpointFile::StepOf(const std::string& path) const {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  Header header;
  CAIRN_RETURN_IF_ERROR(ReadAt(file.get(), 0, std::as_writable_bytes(std::span(&header, 1)), path));
  if (header.magic == kMagic && header.bytes == bytes_) return header.step;
  return Error(StatusCode::kCorrupt, "{}: expected a checkpoint of {} bytes, found one of {}", path, bytes_,
               header.bytes);
}

Result<std::uint64_t> CheckpointFile::newest() const { return StepOf(path_); }

Status CheckpointFile::Read(std::uint64_t step, MutableBytes bytes) const {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t newest, StepOf(path_));
  if (newest != step) {
    const Result<std::uint64_t> before = StepOf(spare_);
    if (!before.ok() || *before != step) {
      return Error(StatusCode::kNotFound, "{}: expected step {} there or before it, found steps {} and {}", path_, step,
                   newest, before.ok() ? std::to_string(*before) : before.status().ToString());
    }
    CAIRN_RETURN_IF_ERROR(Rename());
    CAIRN_RETURN_IF_ERROR(SyncDirectory(directory_));
  }
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path_);
  return ReadAt(file.get(), kBlock, bytes, path_);
}

Result<std::uint64_t> ReadNewest(const CheckpointFile& file, const Workplace& workplace, MutableBytes host) {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, NewestOnAll(workplace, file.newest()));
  CAIRN_RETURN_IF_ERROR(file.Read(step, host));
  return step;
}

}  // namespace cairn::bench
