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

/// The coordinator's checks of the other ranks' shards, through its own descriptor of the attempt's folder: a rank may
/// have written into another directory at the same path, for example if a mount is missing on its node. Each shard is
/// checked when its rank's message arrives, a few at a time. On the queue's thread.
class ShardChecks : public std::enable_shared_from_this<ShardChecks> {
 public:
  /// Receives the shard's run of the index (see EncodeIndexRun), empty if it has none.
  using Done = std::function<void(Result<std::string> run)>;

  ShardChecks(IoQueue& queue, std::shared_ptr<const AttemptFolder> folder);

  /// Checks that the shard is as its rank reported it: a regular file of that length with that header digest.
  /// FailedPrecondition, naming rank and file, if it is missing; Corrupt if it differs. `done` comes once, never from
  /// within the call, unless Stop comes first.
  void Add(std::size_t rank, ManifestShard shard, Done done);
  /// Drops checks that have not begun.
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
  int in_flight_ = 0;
};

}  // namespace cairn
