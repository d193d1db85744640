#include "restore/open.h"

#include <utility>

#include "base/status_macros.h"

namespace cairn {

Result<OpenedCheckpoint> OpenCheckpoint(IoQueue& queue, const StoredCheckpoint& checkpoint) {
  CAIRN_RETURN_IF_ERROR(checkpoint.info.status);
  CAIRN_ASSIGN_OR_RETURN(ReadLock lock, ReadLock::Take(checkpoint.info.path));
  Result<std::vector<ShardFile>> files = OpenShards(queue, checkpoint);
  if (!files.ok()) {
    // A checkpoint that was replaced since it was listed looks damaged; its manifest tells them apart.
    const Result<StoredCheckpoint> now = ReadCheckpointFolder(checkpoint.info.path);
    if (now.ok() && now->manifest.attempt != checkpoint.manifest.attempt) {
      return Error(StatusCode::kNotFound, "{}: attempt {} was replaced by {} meanwhile", checkpoint.info.path,
                   checkpoint.manifest.attempt, now->manifest.attempt);
    }
    return files.status();
  }
  return OpenedCheckpoint{std::move(lock), *std::move(files)};
}

std::vector<std::string> ShardNames(const StoredCheckpoint& checkpoint) {
  std::vector<std::string> names;
  for (const ManifestShard& shard : checkpoint.manifest.shards) names.push_back(shard.file);
  return names;
}

}  // namespace cairn
