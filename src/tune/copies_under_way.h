#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "device/device.h"

namespace cairn {

/// Batches that a device copies, and the wait for all of them. For one thread.
class CopiesUnderWay {
 public:
  explicit CopiesUnderWay(Device& device) : device_(device) {}

  void Add(CopyBatch batch) {
    {
      const MutexLock lock(state_->mutex);
      ++state_->count;
    }
    const auto done = [state = state_](const Status& status) { state->Done(status); };
    if (const Status refused = device_.Copy(std::move(batch), done); !refused.ok()) state_->Done(refused);
  }
  /// The first error.
  Status Wait() {
    MutexLock lock(state_->mutex);
    while (state_->count > 0) state_->changed.Wait(state_->mutex);
    return state_->status;
  }

 private:
  // Shared with the device, whose last call may still hold the lock when Wait returns.
  struct State {
    void Done(const Status& ended) CAIRN_EXCLUDES(mutex) {
      const MutexLock lock(mutex);
      if (status.ok()) status = ended;
      if (--count == 0) changed.NotifyAll();
    }
    Mutex mutex;
    CondVar changed;
    std::size_t count CAIRN_GUARDED_BY(mutex) = 0;
    Status status CAIRN_GUARDED_BY(mutex);
  };

  Device& device_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace cairn
