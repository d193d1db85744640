#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/flock.h"
#include "store/io_steps.h"
#include "store/spare.h"

namespace cairn {

/// What a removal had to leave, one sentence each: files that could not be unlinked, directories that are not ours.
using Leftovers = std::vector<std::string>;

/// Appends the steps that remove a folder and the files in it. They never end the sequence: what cannot be removed
/// stays and is told in `left`. Links are removed, not followed; a directory inside, which nobody here has made, is
/// left alone.
void AppendFolderRemoval(std::vector<IoStep>& steps, const std::string& folder, std::shared_ptr<Leftovers> left);

/// The same for the folder `name` in the root, but keeps the wished files that may be recycled: all else is removed,
/// then the folder takes the first of the wished names of spares that is free, or keeps its own if that is one of them.
void AppendRecyclingRemoval(std::vector<IoStep>& steps, const std::string& root, const std::string& name,
                            SpareWish wish, std::shared_ptr<Leftovers> left);

/// Appends the steps that keep readers (see ReadLock) out of a checkpoint's folder for as long as `lock` lives; they
/// end the sequence with FailedPrecondition where one is reading. A folder without a manifest can have no readers.
void AppendReaderLockout(std::vector<IoStep>& steps, const std::string& folder, UniqueFd& manifest,
                         std::optional<Flock>& lock);

}  // namespace cairn
