#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"

namespace cairn {

struct FolderEntry {
  std::string name;
  /// False for a link to a directory.
  bool directory = false;
};
/// A folder's entries, sorted by name. NotFound if it does not exist; an error if it is a link.
[[nodiscard]] Result<std::vector<FolderEntry>> ListFolder(const PathAt& folder);

/// The same for a root, which may be a link.
[[nodiscard]] Result<std::vector<FolderEntry>> ListRoot(const PathAt& root);

/// What stat(2) says of a directory, or of a link to one. InvalidArgument if it is something else.
[[nodiscard]] Result<struct stat> StatDirectory(const std::string& path);

/// Whether `path` itself, not the target of a link, is the file that the descriptor has open.
[[nodiscard]] bool IsSameFile(const PathAt& path, const UniqueFd& fd);
/// The same, looked up on another thread. Also false if the lookup fails.
IoTask<bool> IsStillSameFile(const PathAt& path, const UniqueFd& fd);

/// Whether a filesystem rejected a rename because of its flags, as NFS and some FUSE filesystems do.
[[nodiscard]] bool RefusesFlags(const IoResult& renamed);
/// Renames a folder to an unused name. EEXIST or ENOTEMPTY if the name is in use. Filesystems without rename flags get
/// a plain rename, which does not replace a non-empty folder either.
IoTask<IoResult> RenameToNew(PathAt from, PathAt to);

}  // namespace cairn
