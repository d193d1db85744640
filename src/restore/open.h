#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "restore/plan.h"
#include "restore/shard_file.h"
#include "store/list.h"
#include "store/locks.h"

namespace cairn {

/// A checkpoint that stays while it is read. Its shards' headers are read as they are needed; with many shards their
/// files are closed behind that, and opened again for their data.
struct OpenedCheckpoint {
  ReadLock lock;
  std::vector<ShardFile> files;  ///< In the manifest's order.
};

/// So many headers are read at once.
inline constexpr int kHeaderReads = 16;

/// Locks a checkpoint that was listed before. Its own status where its manifest does not verify; NotFound where it was
/// removed or replaced since. Reads no header.
[[nodiscard]] Result<OpenedCheckpoint> LockCheckpoint(const StoredCheckpoint& checkpoint);

/// Reads the headers of these shards (places in the manifest) that were not read yet, several at a time. Blocking; the
/// queue is the caller's alone. Corrupt as for ReadShardHeader, of the first one in the order given.
[[nodiscard]] Status ReadHeaders(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                 std::span<const std::uint32_t> shards, std::vector<ShardFile>& files);
[[nodiscard]] Status ReadAllHeaders(IoQueue& queue, const StoredCheckpoint& checkpoint, std::vector<ShardFile>& files);
/// Locks it and reads every header.
[[nodiscard]] Result<OpenedCheckpoint> OpenCheckpoint(IoQueue& queue, const StoredCheckpoint& checkpoint);

/// What a failure to read the checkpoint means: NotFound where it was removed or replaced meanwhile, as by a writer
/// whose filesystem knows no locks; else the same status.
[[nodiscard]] Status ExplainFailure(const StoredCheckpoint& checkpoint, Status status);

/// The shards' file names, in the manifest's order.
[[nodiscard]] std::vector<std::string> ShardNames(const StoredCheckpoint& checkpoint);
/// The shards as a plan sees them: without a header those that were not read.
[[nodiscard]] std::vector<SavedShard> SavedShards(const OpenedCheckpoint& opened);

}  // namespace cairn
