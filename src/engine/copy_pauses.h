#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "engine/inbox.h"

namespace cairn {

/// The pauses that hold copies to the host back. Shared by the engine and the CopyPause objects. Safe from any thread.
class CopyPauses {
 public:
  using Time = Deadline::Clock::time_point;

  explicit CopyPauses(std::shared_ptr<Inbox> engine) : engine_(std::move(engine)) {}

  /// Returns the pause's id. It ends by itself at `until`.
  [[nodiscard]] std::uint64_t Begin(Time until) CAIRN_EXCLUDES(mutex_) {
    used_ = true;
    MutexLock lock(mutex_);
    pauses_[++last_] = until;
    return last_;
  }
  /// Wakes the engine. Does nothing in a forked child, where the lock is unreliable.
  void End(std::uint64_t id) CAIRN_EXCLUDES(mutex_);
  void EndAll() CAIRN_EXCLUDES(mutex_);
  /// Copies may begin again at this time, or when the pauses have ended; in the past if nothing holds them back.
  [[nodiscard]] Time until() const CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Time latest;
    for (const auto& [id, until] : pauses_) latest = std::max(latest, until);
    return latest;
  }
  [[nodiscard]] bool active() const { return used() && until() > Deadline::Clock::now(); }
  /// There has been one. From then on a save has one chunk on its way, so that a pause takes effect soon.
  [[nodiscard]] bool used() const { return used_; }

 private:
  const pid_t process_ = ::getpid();
  const std::shared_ptr<Inbox> engine_;
  std::atomic<bool> used_ = false;
  mutable Mutex mutex_;
  std::uint64_t last_ CAIRN_GUARDED_BY(mutex_) = 0;
  // By id: when it ends by itself.
  std::map<std::uint64_t, Time> pauses_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
