#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "cairn/status.h"
#include "io/io_queue.h"

namespace cairn {

/// Runs calls that block their callers, each on a thread and a queue of its own.
///
/// When the disk has not answered an operation of one for stall_timeout, the callers of all of them are told so, and
/// the calls go on without them: they end when the disk answers, so that locks are released and the ledger knows what
/// has happened. Until then further calls are refused.
class BlockingCalls {
 public:
  using Call = std::function<Status(IoQueue&)>;

  /// Zero for `stall_timeout`: no limit.
  BlockingCalls(IoQueueFactory make_queue, std::chrono::nanoseconds stall_timeout);
  /// Waits for what is running. Call it only if idle().
  ~BlockingCalls();

  /// `call` must own what it uses, or use what outlives this.
  Status Run(Call call) CAIRN_EXCLUDES(mutex_);
  /// Nothing has been left running.
  [[nodiscard]] bool idle() const CAIRN_EXCLUDES(mutex_);
  /// Calls `then` once idle(), on the thread of the last call, or at once. Nothing may be run any more.
  void AtEnd(std::function<void()> then) CAIRN_EXCLUDES(mutex_);

 private:
  struct Running {
    std::thread thread;
    bool ended = false;
    // Its caller has gone.
    bool left = false;
    Status outcome;
  };
  void Work(Running& one, const Call& call) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool AllEnded() const CAIRN_REQUIRES(mutex_);

  const IoQueueFactory make_queue_;
  const std::chrono::nanoseconds stall_timeout_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Running> running_ CAIRN_GUARDED_BY(mutex_);
  Status hangs_ CAIRN_GUARDED_BY(mutex_);
  std::function<void()> at_end_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
