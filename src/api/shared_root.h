#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"
#include "store/root.h"

namespace cairn {

// How the ranks of a group open one root: rank 0 first. The others wait for its message, and then make sure that they
// see the same directory.

/// Opens the root for this rank. On other ranks it fails if rank 0 failed to open the root, or sent no message in time;
/// FailedPrecondition, naming host and path, if for group_timeout it does not see what rank 0 has written there: rank 0
/// opened another directory, or its names are seen late. On other ranks `memory` becomes what rank 0 says of its memory
/// root (see memory_ranks.h). Blocking; no other thread may use the queue.
[[nodiscard]] Result<std::unique_ptr<Root>> OpenSharedRoot(IoQueue& queue, const Options& options, Group& group,
                                                           std::string& memory);

// Rank 0's messages. These do nothing on other ranks, in a group of one, or for a read-only root. `sent` is how many
// have gone before.

/// What comes before the root is opened goes on: the other ranks wait for group_timeout again.
void AnnounceGoesOn(const Options& options, std::uint64_t& sent);
/// The last one: the root is open for the writer of this id, with what is said of the memory root; or why Open failed.
void AnnounceOpened(const Options& options, std::uint64_t sent, const std::string& writer_id, const std::string& memory,
                    const Status& status);

}  // namespace cairn
