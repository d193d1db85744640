#pragma once

#include <string>
#include <vector>

#include "restore/shard_file.h"
#include "store/list.h"
#include "store/locks.h"

namespace cairn {

/// A checkpoint that stays while it is read, all its headers checked.
struct OpenedCheckpoint {
  ReadLock lock;
  std::vector<ShardFile> files;  ///< In the manifest's order.
};

/// Locks and opens a checkpoint that was listed before. Its own status where its manifest does not verify; NotFound
/// where it was removed or replaced since; Corrupt as for OpenShards.
[[nodiscard]] Result<OpenedCheckpoint> OpenCheckpoint(IoQueue& queue, const StoredCheckpoint& checkpoint);

/// The shards' file names, in the manifest's order.
[[nodiscard]] std::vector<std::string> ShardNames(const StoredCheckpoint& checkpoint);

}  // namespace cairn
