#include "store/space.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "base/status_macros.h"

namespace cairn {

Status CheckFileSizeLimit(const std::string& path, std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) return ErrnoStatus(errno, "reading RLIMIT_FSIZE");
  if (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return Status::Ok();
  return Error(StatusCode::kNoSpace, "{} needs {} bytes, RLIMIT_FSIZE allows {} a file", path, bytes, limit.rlim_cur);
}

Status CheckFreeSpace(const PathAt& root, const std::string& path, std::uint64_t bytes) {
  struct statvfs found {};
  const bool open = root.directory() != AT_FDCWD;
  if ((open ? ::fstatvfs(root.directory(), &found) : ::statvfs(root.c_str(), &found)) != 0) {
    return ErrnoStatus(errno, "asking for free space under " + root.text());
  }
  if (found.f_blocks == 0) return Status::Ok();  // The filesystem does not say.
  const std::uint64_t free = std::uint64_t{found.f_bavail} * found.f_frsize;
  if (bytes <= free) return Status::Ok();
  return Error(StatusCode::kNoSpace, "{} needs {} bytes, {} are free under {}", path, bytes, free, root);
}

}  // namespace cairn
