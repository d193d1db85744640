#include "store/manifest_file.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/status_macros.h"
#include "format/manifest.h"

namespace cairn {

Result<std::uint64_t> ManifestFileSize(const UniqueFd& fd, const std::string& path) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path);
  if (!S_ISREG(found.st_mode)) return Error(StatusCode::kCorrupt, "{}: expected a regular file", path);
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size > kMaxManifestBytes) {
    return Error(StatusCode::kCorrupt, "{}: expected at most {} bytes, found {}", path, kMaxManifestBytes, size);
  }
  return size;
}

}  // namespace cairn
