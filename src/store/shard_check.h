#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_task.h"
#include "store/attempt_folder.h"
#include "store/late_name.h"

namespace cairn {

/// The coordinator's checks of the other ranks' shards, through its own descriptor of the attempt's folder: a rank may
/// have written into another directory at the same path, for example if a mount is missing on its node. Each shard is
/// checked when its rank's message arrives, a few at a time. On the queue's thread.
class ShardChecks : public std::enable_shared_from_this<ShardChecks> {
 public:
  /// Receives the shard's run of the index (see EncodeIndexRun), empty if it has none.
  using Done = std::function<void(Result<std::string> run)>;
  using OnNotYet = std::function<void(const Event& event)>;

  /// A shard that is not visible is looked for until `timeout`. `not_yet` says so, once.
  ShardChecks(IoQueue& queue, std::shared_ptr<const AttemptFolder> folder, std::chrono::nanoseconds timeout,
              OnNotYet not_yet);

  /// Checks that the shard is as its rank reported it: a regular file of that length with that header digest.
  /// FailedPrecondition, naming rank and file, if it never became visible; Corrupt if it differs. `done` comes once,
  /// never from within the call, unless Stop comes first.
  void Add(std::size_t rank, ManifestShard shard, Done done);
  /// Drops checks that have not begun, or wait to look again.
  void Stop() { waiting_.clear(), late_.clear(); }

  /// When OnTime must be called.
  [[nodiscard]] Deadline wakes_at() const;
  void OnTime();
  /// Not ok if a shard is being looked for: what to say if it is to be no longer.
  [[nodiscard]] Status Late() const;

 private:
  struct Check {
    std::size_t rank = 0;
    ManifestShard shard;
    Done done;
    /// It was not found.
    std::optional<LateName> late = {};
    Deadline next_look = Deadline::Infinite();
  };
  void BeginWaiting();
  void OnNotFound(Check check);

  IoQueue& queue_;
  const std::shared_ptr<const AttemptFolder> folder_;
  const std::chrono::nanoseconds timeout_;
  const OnNotYet not_yet_;
  std::deque<Check> waiting_;
  std::vector<Check> late_;
  int in_flight_ = 0;
  bool told_ = false;
};

}  // namespace cairn
