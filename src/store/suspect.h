#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"
#include "io/path_at.h"

namespace cairn {

/// Checkpoints that link a kept file of attempt `writer`, after a save has found that what is frozen is no longer what
/// the file holds, though nobody said so: since when is not known.
struct SuspectSteps {
  std::string file;
  std::string writer;
  std::set<std::uint64_t> steps;
};

/// Whether the checkpoint in this open folder is marked, or that cannot be told.
[[nodiscard]] bool IsSuspect(const UniqueFd& folder);

/// Marks the checkpoint in this folder, durably.
IoTask<Status> MarkSuspectFolder(PathAt folder, unsigned file_mode);

/// Marks them, durably: an empty file in each folder. What is not there, or has another file, is left alone, and so is
/// the checkpoint of the attempt that wrote the file from the tensors. Marks the folder of an `attempt`, too, that will
/// be such a checkpoint. Goes on after an error, and returns the first.
IoTask<Status> MarkSuspect(PathAt root, std::vector<SuspectSteps> found, std::optional<PathAt> attempt,
                           unsigned file_mode);

}  // namespace cairn
