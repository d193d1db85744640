#include "restore/open.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "io/io_task.h"

namespace cairn {
namespace {

constexpr std::size_t kReadLanes = kHeaderReads;
static_assert(kReadLanes <= kOpenFiles);

struct HeaderReads {
  const StoredCheckpoint& checkpoint;
  std::vector<ShardFile>& files;
  std::span<const std::uint32_t> shards;
  std::size_t next = 0;
  std::size_t failed_at = shards.size();  // The first in the given order.
  Status failure;
};

IoTask<Status> ReadLane(HeaderReads& reads) {
  while (reads.next < reads.shards.size() && reads.failure.ok()) {
    const std::size_t at = reads.next++;
    const std::uint32_t shard = reads.shards[at];
    ShardFile& file = reads.files[shard];
    if (file.has_header) continue;
    Status status = co_await ReadShardHeader(reads.checkpoint, reads.checkpoint.manifest.shards[shard], file);
    if (reads.shards.size() > kOpenFiles) file.fd.Reset();
    if (status.ok() || at > reads.failed_at) continue;
    reads.failed_at = at;
    reads.failure = std::move(status);
  }
  co_return Status::Ok();
}

IoTask<Status> ReadAllLanes(HeaderReads& reads) {
  std::vector<IoTask<Status>> lanes;
  const std::size_t count = std::min(kReadLanes, reads.shards.size());
  lanes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) lanes.push_back(ReadLane(reads));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(lanes)));
  co_return reads.failure;
}

}  // namespace

Result<OpenedCheckpoint> LockCheckpoint(const StoredCheckpoint& checkpoint) {
  CAIRN_RETURN_IF_ERROR(checkpoint.info.status);
  CAIRN_ASSIGN_OR_RETURN(ReadLock lock, ReadLock::Take(checkpoint.info.path));
  OpenedCheckpoint opened{.lock = std::move(lock), .files = {}};
  opened.files.resize(checkpoint.manifest.shards.size());
  for (std::size_t i = 0; i < opened.files.size(); ++i) {
    const ManifestShard& shard = checkpoint.manifest.shards[i];
    opened.files[i].name = checkpoint.info.path + "/" + shard.file;
    opened.files[i].length = shard.length;
  }
  return opened;
}

Status ReadHeaders(IoQueue& queue, const StoredCheckpoint& checkpoint, std::span<const std::uint32_t> shards,
                   std::vector<ShardFile>& files) {
  HeaderReads reads{.checkpoint = checkpoint, .files = files, .shards = shards, .failure = {}};
  Status status = RunTaskBlocking(queue, ReadAllLanes(reads));
  return status.ok() ? status : ExplainFailure(checkpoint, std::move(status));
}

Status ReadAllHeaders(IoQueue& queue, const StoredCheckpoint& checkpoint, std::vector<ShardFile>& files) {
  std::vector<std::uint32_t> all(files.size());
  std::iota(all.begin(), all.end(), 0U);
  return ReadHeaders(queue, checkpoint, all, files);
}

Result<OpenedCheckpoint> OpenCheckpoint(IoQueue& queue, const StoredCheckpoint& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, LockCheckpoint(checkpoint));
  CAIRN_RETURN_IF_ERROR(ReadAllHeaders(queue, checkpoint, opened.files));
  return opened;
}

Status ExplainFailure(const StoredCheckpoint& checkpoint, Status status) {
  if (status.code() != StatusCode::kCorrupt) return status;
  const Result<StoredCheckpoint> now = ReadCheckpointFolder(checkpoint.info.path);
  if (now.ok() && now->manifest.attempt != checkpoint.manifest.attempt) {
    return Error(StatusCode::kNotFound, "{}: attempt {} was replaced by {} meanwhile", checkpoint.info.path,
                 checkpoint.manifest.attempt, now->manifest.attempt);
  }
  if (!now.ok() && now.status().code() == StatusCode::kNotFound) {
    return Error(StatusCode::kNotFound, "{}: removed while it was being read", checkpoint.info.path);
  }
  return status;
}

std::vector<std::string> ShardNames(const StoredCheckpoint& checkpoint) {
  std::vector<std::string> names;
  for (const ManifestShard& shard : checkpoint.manifest.shards) names.push_back(shard.file);
  return names;
}

std::vector<SavedShard> SavedShards(std::span<const ShardFile> files) {
  std::vector<SavedShard> shards;
  shards.reserve(files.size());
  for (const ShardFile& file : files) shards.push_back({file.name, file.has_header ? &file.header : nullptr});
  return shards;
}

}  // namespace cairn
