#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/path_at.h"
#include "store/list.h"
#include "store/paths.h"

namespace cairn {

/// A complete attempt that nobody gave up and that has no name: its writer was killed right before the rename, or a
/// disk has lost a rename that it had acknowledged.
struct UnnamedAttempt {
  /// Its folder in the root, ".retired-<attempt>".
  std::string folder;
  std::uint64_t step = 0;
  /// From which training resumes, if there is a checkpoint.
  std::optional<std::uint64_t> newest;
  /// Of its shards.
  std::uint64_t bytes = 0;
};

/// The newest one in the root, if it is newer than every checkpoint there and in memory, and its step has no folder.
/// `entries` are the root's, after Root::Open has renamed the attempts. Only lengths are checked, not contents.
/// Blocking.
[[nodiscard]] std::optional<UnnamedAttempt> FindUnnamedAttempt(const PathAt& root,
                                                               const std::vector<FolderEntry>& entries,
                                                               const MemoryPlace& memory);

}  // namespace cairn
