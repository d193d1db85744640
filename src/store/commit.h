#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "store/io_steps.h"

namespace cairn {

struct CommitSpec {
  std::string root;
  std::string folder;         ///< The attempt's, in the root.
  const UniqueFd* folder_fd;  ///< The same, open; outlives the commit.
  Manifest manifest;
  bool replace = false;
  unsigned file_mode = 0644;
  std::vector<std::string> spares;  ///< Unlinked where the disk is full.
  /// What else must have ended well before the rename: a sequence that runs beside the manifest's writing, and
  /// sequences that run beside its fsync.
  std::vector<IoStep> written_beside;
  std::vector<std::vector<IoStep>> fsynced_beside;
};
/// `in_place`: the folder may no longer be the attempt's, or certainly is not; nothing under its name may be removed.
using CommitDone = std::function<void(Status, bool in_place)>;

/// Step 5 of the commit protocol, what Attempt::Commit promises. `done` comes once, never from within the call.
void CommitFolder(IoQueue& queue, CommitSpec spec, CommitDone done);

}  // namespace cairn
