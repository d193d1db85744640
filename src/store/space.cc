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
  return Error(StatusCode::kNoSpace, "{} needs {} bytes, RLIMIT_FSIZE allows {} per file", path, bytes, limit.rlim_cur);
}

Result<std::optional<std::uint64_t>> FindFreeSpace(const PathAt& root) {
  struct statvfs found {};
  const bool open = root.directory() != AT_FDCWD;
  if ((open ? ::fstatvfs(root.directory(), &found) : ::statvfs(root.c_str(), &found)) != 0) {
    return ErrnoStatus(errno, "asking for free space under " + root.text());
  }
  if (found.f_blocks == 0) return std::optional<std::uint64_t>();
  return std::optional<std::uint64_t>(std::uint64_t{found.f_bavail} * found.f_frsize);
}

Status CheckFreeSpace(const PathAt& root, const std::string& path, std::uint64_t bytes,
                      std::atomic<std::int64_t>* found) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> free, FindFreeSpace(root));
  if (free && found != nullptr) *found = static_cast<std::int64_t>(*free);
  if (!free || bytes <= *free) return Status::Ok();
  return Error(StatusCode::kNoSpace,
               "{} needs {} bytes, {} are free under {}; remove checkpoints (cairn gc) or other files", path, bytes,
               *free, root);
}

}  // namespace cairn
