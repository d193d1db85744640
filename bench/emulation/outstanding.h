#pragma once

#include <chrono>
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
  /// Returns when all are done: the first failure, if any. After a sticky error of the device none of them will be.
  Status Await() {
    MutexLock lock(copies_->mutex);
    while (copies_->count > 0) {
      if (copies_->none.WaitUntil(copies_->mutex, Deadline::In(std::chrono::seconds(1)))) continue;
      if (Status sick = device_.Health(); !sick.ok()) return sick;
    }
    return copies_->status;
  }

 private:
  // Filled in by the device, possibly after a sticky error has ended the wait.
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
