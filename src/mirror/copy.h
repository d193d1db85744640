#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cairn/status.h"
#include "device/buffer_pool.h"
#include "format/manifest.h"
#include "io/io_task.h"
#include "mirror/bucket.h"
#include "mirror/rate_limit.h"
#include "restore/shard_file.h"
#include "store/attempt_file.h"
#include "store/attempt_folder.h"
#include "store/hold.h"
#include "store/root.h"

namespace cairn {

/// A copy reads and writes this many runs of pieces at once.
inline constexpr std::uint64_t kCopyLanes = 4;
/// The chunks of the pool that each takes: of an object store one piece is read while the one before is written.
[[nodiscard]] inline std::uint64_t ChunksOfLane(const Bucket* source) { return source == nullptr ? 1 : 2; }

/// Copies one checkpoint into another root (see the protocol in copy.cc). For the queue's thread; outlives its task.
class CheckpointCopy {
 public:
  struct Spec {
    const HeldCheckpoint& from;
    /// Where `from` is; null: in a root. Then the queue should have several threads: calls block them.
    const Bucket* bucket;
    Root& to;
    /// What `to` has. Kept files are linked from these.
    std::span<const StoredCheckpoint> there;
    /// Which kept files of `to` have been found whole. Others are read before they are linked: what has rotted is
    /// copied.
    std::set<std::string>& whole;
    unsigned file_mode;
    unsigned directory_mode;
    BufferPool& pool;
    RateLimit& limit;
    /// Asked before each piece: ends the copy as Cancelled.
    std::function<bool()> interrupted;
  };
  explicit CheckpointCopy(Spec spec);
  ~CheckpointCopy();
  CheckpointCopy(const CheckpointCopy&) = delete;
  CheckpointCopy& operator=(const CheckpointCopy&) = delete;

  /// Ok: durable in `to`. Corrupt names what is damaged in the source. After an error `to` is as it was, or, after
  /// UnknownOutcome, has the checkpoint whole.
  IoTask<Status> Run();
  /// The error is damage of the source: copying it again would end in the same way.
  [[nodiscard]] bool source_damaged() const { return source_damaged_; }
  /// Read and written so far; what was linked is not.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  struct File;

  IoTask<Status> Copy();
  [[nodiscard]] Status CheckRoom() const;
  IoTask<Status> LinkKept();
  IoTask<Status> LinkOne(const ManifestShard& shard, const StoredCheckpoint& other, bool& linked);
  IoTask<Status> CopyBatch(std::span<const std::unique_ptr<File>> batch);
  IoTask<Status> BeginFile(File& file);
  IoTask<Status> Lane(std::span<const std::unique_ptr<File>> batch);
  IoTask<Status> CopyRun(File& file, std::uint64_t offset, std::uint64_t length,
                         std::span<const BufferPool::Chunk> chunks);
  IoTask<Status> ReadPiece(File& file, std::uint64_t offset, std::uint64_t length, std::byte* memory, RcloneCall* call);
  [[nodiscard]] std::string ObjectName(const File& file) const;
  [[nodiscard]] Status FetchHeader(File& file) const;
  [[nodiscard]] IoTask<Status> VerifyAll(ShardFile& file);
  IoTask<Status> EndFile(File& file);
  IoTask<Status> Commit();
  /// Notes that the source is damaged, if that is what the status of a read says.
  Status OfSource(Status status);

  const Spec spec_;
  AttemptFolder folder_;
  std::vector<std::unique_ptr<File>> files_;
  // The first error of a lane: the others stop.
  Status failed_;
  bool source_damaged_ = false;
  // The folder has, or may have, its final name.
  bool in_place_ = false;
  std::uint64_t bytes_ = 0;
};

}  // namespace cairn
