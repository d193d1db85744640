#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cairn/status.h"
#include "device/buffer_pool.h"
#include "io/io_task.h"
#include "mirror/bucket.h"
#include "mirror/rate_limit.h"
#include "restore/shard_file.h"
#include "store/hold.h"

namespace cairn {

/// Copies one checkpoint into an object store (see the protocol in upload.cc). For the queue's thread; outlives its
/// task. Calls block threads of the queue: it should have several.
class CheckpointUpload {
 public:
  struct Spec {
    const HeldCheckpoint& from;
    Bucket& to;
    /// What `to` has that is whole.
    std::span<const StoredCheckpoint> there;
    BufferPool& pool;
    RateLimit& limit;
    /// Asked before the manifest is written.
    std::function<Status()> check_writer;
    /// Asked before each piece: ends the copy as Cancelled.
    std::function<bool()> interrupted;
  };
  explicit CheckpointUpload(Spec spec) : spec_(std::move(spec)) {}

  /// Ok: it is in `to`. Corrupt names what is damaged in the source. After an error `to` has no manifest of it, except
  /// if the last call ended in a way that tells nothing; a later copy goes on with the objects that are there.
  IoTask<Status> Run();
  /// See CheckpointCopy.
  [[nodiscard]] bool source_damaged() const { return source_damaged_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  struct File {
    ManifestShard what;
    bool is_index = false;
  };

  [[nodiscard]] std::vector<File> Missing() const;
  IoTask<Status> Lane(std::span<const File> files);
  IoTask<Status> CopyFile(const File& file, std::byte* memory);
  IoTask<Status> Send(const File& file, ShardFile& source, RcloneCall& call, std::byte* memory);
  [[nodiscard]] std::string FindKept(const ManifestShard& shard) const;
  [[nodiscard]] Status Commit();
  Status OfSource(Status status);

  const Spec spec_;
  // The next file that no lane has taken.
  std::size_t next_ = 0;
  // The first error of a lane: the others stop.
  Status failed_;
  bool source_damaged_ = false;
  std::uint64_t bytes_ = 0;
};

}  // namespace cairn
