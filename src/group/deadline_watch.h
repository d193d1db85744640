#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace cairn {

class Mailbox;

/// A thread that calls mailboxes when their earliest deadline has passed. Safe from any thread.
///
/// It must not be destroyed on its own thread, so never by a mailbox's callback. In a forked child it does nothing.
class DeadlineWatch {
 public:
  using TimePoint = Deadline::Clock::time_point;

  DeadlineWatch();
  ~DeadlineWatch();
  DeadlineWatch(const DeadlineWatch&) = delete;
  DeadlineWatch& operator=(const DeadlineWatch&) = delete;

  /// Not ok if the system started no thread: then no deadline is watched.
  [[nodiscard]] const Status& status() const { return status_; }
  /// Calls the mailbox's EndOverdue once, at `when`. Replaces the call at `before`, if there is one.
  void Arm(const std::shared_ptr<Mailbox>& mailbox, TimePoint before, TimePoint when) CAIRN_EXCLUDES(mutex_);

 private:
  void Run() CAIRN_EXCLUDES(mutex_);

  const pid_t process_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<TimePoint, const Mailbox*>, std::weak_ptr<Mailbox>> armed_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  // Constant after construction.
  std::thread thread_;
  Status status_;
};

}  // namespace cairn
