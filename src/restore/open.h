#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "restore/match.h"
#include "restore/shard_file.h"
#include "store/list.h"
#include "store/locks.h"

namespace cairn {

/// A checkpoint that is locked while it is read. Shard headers are read as needed; with many shards, files are closed
/// afterwards and opened again for their data.
struct OpenedCheckpoint {
  ReadLock lock;
  /// In the manifest's order.
  std::vector<ShardFile> files;
};

/// How many headers are read at once.
inline constexpr int kHeaderReads = 16;

/// Locks a checkpoint from a listing. Returns its status if its manifest does not verify; NotFound if it was removed or
/// replaced since. Reads no header.
[[nodiscard]] Result<OpenedCheckpoint> LockCheckpoint(const StoredCheckpoint& checkpoint);

/// Reads the headers of these shards (indices in the manifest) unless already read, several at a time. Blocking; needs
/// exclusive use of the queue. Corrupt as for ReadShardHeader, for the first shard in the given order.
[[nodiscard]] Status ReadHeaders(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                 std::span<const std::uint32_t> shards, std::vector<ShardFile>& files);
[[nodiscard]] Status ReadAllHeaders(IoQueue& queue, const StoredCheckpoint& checkpoint, std::vector<ShardFile>& files);
/// Locks it and reads every header.
[[nodiscard]] Result<OpenedCheckpoint> OpenCheckpoint(IoQueue& queue, const StoredCheckpoint& checkpoint);

/// Turns a failure to read the checkpoint into NotFound if it was removed or replaced meanwhile, for example by a
/// writer on a filesystem without locks; otherwise returns it unchanged.
[[nodiscard]] Status ExplainFailure(const StoredCheckpoint& checkpoint, Status status);

/// The shards' file names, in the manifest's order.
[[nodiscard]] std::vector<std::string> ShardNames(const StoredCheckpoint& checkpoint);
/// The shards for a plan. Those whose headers were not read have none.
[[nodiscard]] std::vector<SavedShard> SavedShards(std::span<const ShardFile> files);

}  // namespace cairn
