#pragma once

#include "base/mutex.h"

namespace cairn {

/// A point in an emulated stream's order that other streams and the host can wait for. Safe from any thread.
class StreamPoint {
 public:
  void Reach() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    reached_ = true;
    changed_.NotifyAll();
  }
  void Await() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!reached_) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool reached_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
