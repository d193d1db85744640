#include "store/paths.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/status_macros.h"

namespace cairn {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

Result<bool> IsDirectory(int folder_fd, const PathAt& folder, const dirent& entry) {
  if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat found {};
  if (::fstatat(folder_fd, entry.d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    return ErrnoStatus(errno, "stat of " + JoinPath(folder, entry.d_name).text());
  }
  return S_ISDIR(found.st_mode);
}

Result<std::vector<FolderEntry>> List(const PathAt& path, int flags) {
  const std::string& folder = path.text();
  UniqueFd fd(::openat(path.directory(), path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
  if (!fd.valid()) return ErrnoStatus(errno, "listing " + folder);
  const std::unique_ptr<DIR, CloseDir> dir(::fdopendir(fd.get()));
  if (dir == nullptr) return ErrnoStatus(errno, "listing " + folder);
  const int folder_fd = fd.Release();  // closedir closes it.
  std::vector<FolderEntry> entries;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    CAIRN_ASSIGN_OR_RETURN(const bool directory, IsDirectory(folder_fd, path, *entry));
    entries.push_back({std::move(name), directory});
  }
  if (errno != 0) return ErrnoStatus(errno, "listing " + folder);
  std::ranges::sort(entries, [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

}  // namespace

Result<std::vector<FolderEntry>> ListFolder(const PathAt& folder) { return List(folder, O_NOFOLLOW); }

Result<std::vector<FolderEntry>> ListRoot(const PathAt& root) { return List(root, 0); }

Result<struct stat> StatDirectory(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return ErrnoStatus(errno, path);
  if (S_ISDIR(found.st_mode)) return found;
  return Error(StatusCode::kInvalidArgument, "{}: expected a directory, found a file", path);
}

bool IsSameFile(const PathAt& path, const UniqueFd& fd) {
  struct stat by_path {};
  struct stat by_fd {};
  return ::fstatat(path.directory(), path.c_str(), &by_path, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(fd.get(), &by_fd) == 0 && by_path.st_dev == by_fd.st_dev && by_path.st_ino == by_fd.st_ino;
}

IoTask<bool> IsStillSameFile(const PathAt& path, const UniqueFd& fd) {
  bool leads = false;
  const Status checked = co_await io::OnThread(path.text(), [&] {
    leads = IsSameFile(path, fd);
    return Status::Ok();
  });
  co_return checked.ok() && leads;
}

bool RefusesFlags(const IoResult& renamed) { return renamed.error == EINVAL || renamed.error == ENOSYS; }

IoTask<IoResult> RenameToNew(PathAt from, PathAt to) {
  IoResult renamed = co_await io::Rename(from, to, RenameMode::kNoReplace);
  if (!RefusesFlags(renamed)) co_return renamed;
  co_return co_await io::Rename(from, to, RenameMode::kPlain);
}

}  // namespace cairn
