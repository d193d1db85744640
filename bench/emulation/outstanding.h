#pragma once

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "device/device.h"

namespace cairn::bench {

/// Copies that one call enqueues and waits for.
class Outstanding {
 public:
  explicit Outstanding(Device& device) : device_(device) {}

  /// Enqueues one more.
  Status Copy(CopyBatch batch) {
    {
      MutexLock lock(copies_->mutex);
      ++copies_->count;
    }
    Status asked = device_.Copy(std::move(batch), [copies = copies_](const Status& status) { copies->Done(status); });
    if (!asked.ok()) copies_->Done(asked);
    return asked;
  }
  /// Returns when all are done: the first failure, if any.
  Status Await() {
    MutexLock lock(copies_->mutex);
    while (copies_->count > 0) copies_->none.Wait(copies_->mutex);
    return copies_->status;
  }

 private:
  // Shared with the device, whose last call may still hold the lock when Await returns.
  struct Copies {
    void Done(const Status& ended) CAIRN_EXCLUDES(mutex) {
      MutexLock lock(mutex);
      if (status.ok()) status = ended;
      if (--count == 0) none.NotifyAll();
    }
    Mutex mutex;
    CondVar none;
    int count CAIRN_GUARDED_BY(mutex) = 0;
    Status status CAIRN_GUARDED_BY(mutex);
  };

  Device& device_;
  const std::shared_ptr<Copies> copies_ = std::make_shared<Copies>();
};

}  // namespace cairn::bench
