#pragma once

#include <cstddef>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_task.h"
#include "io/path_at.h"

namespace cairn {

/// Whether the open folder of an attempt holds every shard as its rank has told it: a regular file of that length whose
/// header has that digest. The coordinator asks this before it commits, because a rank may have written elsewhere: into
/// another directory of that path, on a node where the mount is missing. FailedPrecondition, naming rank and file,
/// where one is not there; Corrupt where it is another. The shard of rank `own` was looked at when it was sealed, and
/// is left out. What is referred to outlives the task.
IoTask<Status> CheckShards(const UniqueFd& folder, const PathAt& path, const Manifest& manifest, std::size_t own);

}  // namespace cairn
