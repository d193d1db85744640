#pragma once

#include <chrono>
#include <utility>

#include "base/mutex.h"
#include "device/device.h"

namespace cairn::bench {

/// Copies that one call asked a device for and waits for.
class Outstanding {
 public:
  explicit Outstanding(Device& device) : device_(device) {}

  /// Enqueues one more.
  Status Copy(CopyBatch batch) CAIRN_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ++count_;
    }
    Status asked = device_.Copy(std::move(batch), [this](const Status& status) { Done(status); });
    if (!asked.ok()) Done(asked);
    return asked;
  }
  /// Returns when all are done: the first failure, if any. After a sticky error of the device none of them will be.
  Status Await() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (count_ > 0) {
      if (none_.WaitUntil(mutex_, Deadline::In(std::chrono::seconds(1)))) continue;
      if (Status sick = device_.Health(); !sick.ok()) return sick;
    }
    return status_;
  }

 private:
  void Done(const Status& status) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = status;
    if (--count_ == 0) none_.NotifyAll();
  }

  Device& device_;
  Mutex mutex_;
  CondVar none_;
  int count_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status status_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::bench
