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
  bool directory = false;  ///< A link to a directory is not one.
};
/// What a folder holds, sorted by name. NotFound where it is not there; a link to a folder is refused.
[[nodiscard]] Result<std::vector<FolderEntry>> ListFolder(const PathAt& folder);

/// The same for a root, which, unlike what is in it, may be a link.
[[nodiscard]] Result<std::vector<FolderEntry>> ListRoot(const PathAt& root);

/// What stat(2) says of a directory, or of a link to one. InvalidArgument if it is something else.
[[nodiscard]] Result<struct stat> StatDirectory(const std::string& path);

/// Whether `path` itself, not what it links to, is what the descriptor has open.
[[nodiscard]] bool LeadsTo(const PathAt& path, const UniqueFd& fd);
/// The same, looked up on a thread. False as well where the disk cannot be asked.
IoTask<bool> StillLeadsTo(const PathAt& path, const UniqueFd& fd);

/// Whether a filesystem has refused a rename for its flags, as NFS and some FUSE do.
[[nodiscard]] bool RefusesFlags(const IoResult& renamed);
/// Renames a folder to a name that nothing has: EEXIST or ENOTEMPTY where something has it. Where the filesystem knows
/// no flags the plain call is used, which does not replace a folder that holds anything either.
IoTask<IoResult> RenameToNew(PathAt from, PathAt to);

}  // namespace cairn
