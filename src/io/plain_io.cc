#include "io/plain_io.h"

#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): renameat2
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace cairn {
namespace {

std::int64_t Call(const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.offset);
  const auto length = static_cast<off_t>(request.length);
  const std::size_t transfer = std::min(request.length, kMaxTransfer);
  switch (request.op) {
    case IoOp::kOpen:
      return ::openat(request.path.directory(), request.path.c_str(), request.flags | O_CLOEXEC, request.mode);
    case IoOp::kClose:
      return ::close(request.fd);
    case IoOp::kRead:
      return ::pread(request.fd, request.buffer, transfer, offset);
    case IoOp::kWrite:
      return ::pwrite(request.fd, request.buffer, transfer, offset);
    case IoOp::kFsync:
      return ::fsync(request.fd);
    case IoOp::kFallocate:
      return ::fallocate(request.fd, 0, offset, length);
    case IoOp::kFtruncate:
      return ::ftruncate(request.fd, length);
    case IoOp::kSyncRange:
      return ::sync_file_range(request.fd, offset, length,
                               SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    case IoOp::kRename:
      return ::renameat2(request.path.directory(), request.path.c_str(), request.path2.directory(),
                         request.path2.c_str(), RenameFlags(request.rename));
    case IoOp::kUnlink:
      return ::unlinkat(request.path.directory(), request.path.c_str(), 0);
    case IoOp::kMkdir:
      return ::mkdirat(request.path.directory(), request.path.c_str(), request.mode);
    case IoOp::kRmdir:
      return ::unlinkat(request.path.directory(), request.path.c_str(), AT_REMOVEDIR);
    case IoOp::kLink:
      return ::linkat(AT_FDCWD, PathOfDescriptor(request.fd).c_str(), request.path2.directory(), request.path2.c_str(),
                      AT_SYMLINK_FOLLOW);
    case IoOp::kCall:
      request.call();
      return 0;
  }
  errno = EINVAL;
  return -1;
}

}  // namespace

std::int64_t RunPlain(const IoRequest& request) {
  const std::int64_t value = Call(request);
  return value < 0 ? -errno : value;
}

// AT_EMPTY_PATH needs a capability before Linux 6.10.
std::string PathOfDescriptor(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

unsigned RenameFlags(RenameMode mode) {
  if (mode == RenameMode::kNoReplace) return RENAME_NOREPLACE;
  return mode == RenameMode::kExchange ? RENAME_EXCHANGE : 0;
}

}  // namespace cairn
