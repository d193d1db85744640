#include "mirror/verify.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "io/io_task.h"
#include "mirror/blocks.h"
#include "mirror/headers.h"
#include "restore/open.h"

namespace cairn {
namespace {

constexpr int kVerifyLanes = 4;

class Verification {
 public:
  Verification(const Bucket& bucket, const StoredCheckpoint& checkpoint, BufferPool& pool, const Progress& progress)
      : bucket_(bucket), checkpoint_(checkpoint), pool_(pool), progress_(progress) {
    for (const ManifestShard& shard : checkpoint.manifest.shards) total_ += shard.length;
  }

  IoTask<Status> Run() {
    const std::span<const ManifestShard> shards(checkpoint_.manifest.shards);
    for (std::size_t at = 0; at < shards.size(); at += kHeaderReads) {
      const auto some = shards.subspan(at, std::min<std::size_t>(kHeaderReads, shards.size() - at));
      CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(checkpoint_.info.path, [&] { return ReadHeaders(some); }));
      CAIRN_CO_RETURN_IF_ERROR(Tell());
      std::vector<IoTask<Status>> lanes;
      for (int lane = 0; lane < kVerifyLanes; ++lane) lanes.push_back(Lane());
      CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(lanes)));
    }
    co_return Status::Ok();
  }

 private:
  /// A part of a file that is read by one call.
  struct Stretch {
    const ShardFile* file = nullptr;
    std::string object;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  Status ReadHeaders(std::span<const ManifestShard> shards) {
    files_.clear();
    files_.resize(shards.size());
    stretches_.clear();
    next_ = 0;
    std::vector<WantedHeader> wanted;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      files_[i].with_values = false;
      wanted.push_back({.checkpoint = &checkpoint_, .shard = &shards[i], .file = &files_[i]});
    }
    FetchHeaders(bucket_, wanted);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      CAIRN_RETURN_IF_ERROR(wanted[i].status);
      const ShardHeader& header = files_[i].header;
      done_ += header.checksums ? header.data_begin : files_[i].length;
      if (!header.checksums) continue;
      const std::string object = Bucket::FolderName(checkpoint_.info) + "/" + shards[i].file;
      const std::uint64_t run = RunBytes(files_[i].length);
      for (std::uint64_t begin = header.data_begin; begin < files_[i].length; begin += run) {
        const std::uint64_t end = std::min(begin + run, files_[i].length);
        stretches_.push_back({.file = &files_[i], .object = object, .begin = begin, .end = end});
      }
    }
    return Status::Ok();
  }

  IoTask<Status> Lane() {
    const BufferPool::Chunk chunk = pool_.TryAcquire(BufferPool::Priority::kSave);
    if (!chunk) co_return Error(StatusCode::kInternal, "the pool has no chunk for a lane");
    while (failed_.ok() && next_ < stretches_.size()) {
      Status read = co_await Read(stretches_[next_++], chunk.data());
      if (failed_.ok()) failed_ = std::move(read);
    }
    co_return failed_;
  }

  IoTask<Status> Read(const Stretch& stretch, std::byte* memory) {
    auto call = bucket_.StartRead(stretch.object, stretch.begin, stretch.end - stretch.begin);
    CAIRN_CO_RETURN_IF_ERROR(call.status());
    for (std::uint64_t offset = stretch.begin; offset < stretch.end && failed_.ok(); offset += pool_.chunk_bytes()) {
      const std::uint64_t length = std::min(pool_.chunk_bytes(), stretch.end - offset);
      CAIRN_CO_RETURN_IF_ERROR(
          co_await io::OnThread(stretch.file->name, [&] { return (*call)->Read(memory, length); }));
      CAIRN_CO_RETURN_IF_ERROR(VerifyBlocks(*stretch.file, offset, Bytes(memory, length)));
      done_ += length;
      CAIRN_CO_RETURN_IF_ERROR(Tell());
    }
    co_return Status::Ok();
  }

  [[nodiscard]] Status Tell() const {
    if (!progress_ || progress_(done_, total_)) return Status::Ok();
    return Error(StatusCode::kCancelled, "verifying {} was cancelled", checkpoint_.info.path);
  }

  const Bucket& bucket_;
  const StoredCheckpoint& checkpoint_;
  BufferPool& pool_;
  const Progress& progress_;
  std::vector<ShardFile> files_;
  std::vector<Stretch> stretches_;
  // The next one that no lane has taken.
  std::size_t next_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  // The first error of a lane: the others stop.
  Status failed_;
};

}  // namespace

Status VerifyInBucket(const Bucket& bucket, const StoredCheckpoint& checkpoint, BufferPool& pool,
                      const Progress& progress) {
  CAIRN_RETURN_IF_ERROR(bucket.CheckObjects(checkpoint));
  // Pipes to rclone block its threads.
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice choice, ChooseIoQueue(IoQueueKind::kThreads, 2 * kVerifyLanes));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, choice.factory());
  Verification verification(bucket, checkpoint, pool, progress);
  return RunTaskBlocking(*queue, verification.Run());
}

}  // namespace cairn
