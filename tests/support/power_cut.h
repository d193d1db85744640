#pragma once

#include <cstddef>
#include <string>

#include "cairn/status.h"
#include "support/recording_queue.h"

namespace cairn {

/// Which work that no fsync covers reached the disk anyway. A disk may do either, so code must be safe under all four
/// combinations. The default is the most pessimistic for what was promised. `data` without `entries` exposes a write to
/// a file whose removal is not durable yet; `entries` without `data` exposes a rename before the fsync.
struct PowerCut {
  bool data = false;     ///< Files' bytes and sizes.
  bool entries = false;  ///< Directories' names: creations, renames, removals.
};

/// Builds under `target`, which must not exist, what a power cut after the recording's first `upto` completed
/// operations leaves of its base directory.
///
/// Without PowerCut's members a file's bytes and size are those of its last completed fsync, without what was written
/// after that fsync was submitted (a file never fsynced is empty), and a directory holds the names that it had at its
/// last completed fsync: a rename or an exchange is lost unless the directory was fsynced since; one between two
/// directories is lost in each that was not. A linked file has as many names as directories hold: its bytes survive
/// under those that do, in one file. What was there when the recording began is durable. Write-back of a range
/// (kSyncRange) makes nothing durable.
Status MaterializeAfterPowerCut(const Recording& recording, std::size_t upto, const std::string& target,
                                PowerCut cut = {});

}  // namespace cairn
