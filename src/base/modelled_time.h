#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "cairn/options.h"

namespace cairn {

/// The clock that a measurement reads.
using TimeSource = std::function<Deadline::Clock::time_point()>;

/// A clock that stands still until it is advanced. Modelled links and disks advance it by the time that a transfer
/// would take, so that measurements do not depend on the machine. Safe from any thread.
class ModelledTime {
 public:
  using Clock = Deadline::Clock;

  [[nodiscard]] Clock::time_point Now() const CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return now_;
  }
  /// Never moves the clock back.
  void AdvanceTo(Clock::time_point when) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    now_ = std::max(now_, when);
  }
  /// A source that reads `time` and keeps it alive.
  [[nodiscard]] static TimeSource Source(std::shared_ptr<const ModelledTime> time) {
    return [time = std::move(time)] { return time->Now(); };
  }

 private:
  mutable Mutex mutex_;
  Clock::time_point now_ CAIRN_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace cairn
