#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"

namespace cairn {

[[nodiscard]] std::string JoinPath(std::string_view folder, std::string_view name);

struct FolderEntry {
  std::string name;
  bool directory = false;  ///< A link to a directory is not one.
};
/// What a folder holds, sorted by name. NotFound where it is not there; a link to a folder is refused.
[[nodiscard]] Result<std::vector<FolderEntry>> ListFolder(const std::string& folder);

/// The same for a root, which, unlike what is in it, may be a link.
[[nodiscard]] Result<std::vector<FolderEntry>> ListRoot(const std::string& root);

/// Whether `path` itself, not what it links to, is what the descriptor has open.
[[nodiscard]] bool LeadsTo(const std::string& path, const UniqueFd& fd);
/// The same, looked up on a thread. False as well where the disk cannot be asked.
IoTask<bool> StillLeadsTo(const std::string& path, const UniqueFd& fd);

}  // namespace cairn
