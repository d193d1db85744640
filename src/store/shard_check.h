#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_task.h"
#include "store/attempt_folder.h"

namespace cairn {

/// The coordinator's looks at the other ranks' shards, through its own descriptor of the attempt's folder: a rank may
/// have written elsewhere, into another directory of that path, on a node where the mount is missing. Each is looked at
/// as its rank's word comes, a few at a time. On the queue's thread.
class ShardChecks : public std::enable_shared_from_this<ShardChecks> {
 public:
  /// What was found: the shard's run of the index (see EncodeIndexRun), empty where it has none.
  using Done = std::function<void(Result<std::string> run)>;

  ShardChecks(IoQueue& queue, std::shared_ptr<const AttemptFolder> folder);

  /// Whether the shard is there as its rank has told it: a regular file of that length whose header has that digest.
  /// FailedPrecondition, naming rank and file, where it is not there; Corrupt where it is another. `done` comes once,
  /// never from within the call, unless Stop came before.
  void Add(std::size_t rank, ManifestShard shard, Done done);
  /// Drops what has not begun.
  void Stop() { waiting_.clear(); }

 private:
  struct Check {
    std::size_t rank;
    ManifestShard shard;
    Done done;
  };
  void BeginWaiting();

  IoQueue& queue_;
  const std::shared_ptr<const AttemptFolder> folder_;
  std::deque<Check> waiting_;
  int under_way_ = 0;
};

}  // namespace cairn
