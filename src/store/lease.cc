#include "store/lease.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGURG
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr long kXfsMagic = 0x58465342;  // No header of the kernel's has it.

/// Local, so that a lease knows of every opener, and no copy-on-write, so that there is something to be gained. An
/// overlay stands for the filesystem below it.
Status CheckFilesystem(const UniqueFd& fd, const std::string& name) {
  struct statfs found {};
  if (::fstatfs(fd.get(), &found) != 0) return ErrnoStatus(errno, "asking for the filesystem of " + name);
  switch (found.f_type) {
    case EXT4_SUPER_MAGIC:
    case kXfsMagic:
    case TMPFS_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
      return Status::Ok();
    default:
      return Error(StatusCode::kUnsupported,
                   "{}: its filesystem ({:#x}) is not known to be local and to write in place", name, found.f_type);
  }
}

}  // namespace

Status TakeLease(const UniqueFd& fd, const std::string& name) {
  CAIRN_RETURN_IF_ERROR(CheckFilesystem(fd, name));
  // Who wants the file open is told to the holder by a signal, SIGIO, which ends a process that does not expect it.
  // It goes to this thread alone (the engine's blocks all signals), and as one that is ignored by default.
  f_owner_ex owner{.type = F_OWNER_TID, .pid = ::gettid()};
  if (::fcntl(fd.get(), F_SETOWN_EX, &owner) != 0 || ::fcntl(fd.get(), F_SETSIG, SIGURG) != 0) {
    return ErrnoStatus(errno, "preparing a lease on " + name);
  }
  if (::fcntl(fd.get(), F_SETLEASE, F_WRLCK) == 0) return Status::Ok();
  if (errno == EAGAIN) {
    return Error(StatusCode::kFailedPrecondition, "{}: somebody has it open or mapped", name);
  }
  if (errno == EINVAL || errno == EOPNOTSUPP) {
    return Error(StatusCode::kUnsupported, "{}: its filesystem gives no leases", name);
  }
  return ErrnoStatus(errno, "taking a lease on " + name);
}

bool HoldsLease(const UniqueFd& fd) { return ::fcntl(fd.get(), F_GETLEASE) == F_WRLCK; }

void GiveBackLease(const UniqueFd& fd) { ::fcntl(fd.get(), F_SETLEASE, F_UNLCK); }

}  // namespace cairn
