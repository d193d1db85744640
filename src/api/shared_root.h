#pragma once

#include <memory>
#include <string>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"
#include "store/root.h"

namespace cairn {

// The root as the ranks of a group open it: rank 0 first; the others wait for its word, and make sure that they see the
// same directory.

/// Opens it for this rank. On other ranks than 0 an error where rank 0 has failed to open it or is not heard in time,
/// and FailedPrecondition, naming host and path, where it has opened another directory. Blocking; the queue is the
/// caller's alone.
[[nodiscard]] Result<std::unique_ptr<Root>> OpenSharedRoot(IoQueue& queue, const Options& options, Group& group);

/// On rank 0, once: tells the others that the root is open for the writer of that id, or why nothing was opened.
/// Nothing on other ranks, alone, or read-only.
void AnnounceOpened(const Options& options, const std::string& writer_id, const Status& status);

}  // namespace cairn
