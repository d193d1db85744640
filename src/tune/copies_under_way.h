#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
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
  /// The first error, or a sticky one, after which nobody hears of the others.
  Status Wait() {
    MutexLock lock(state_->mutex);
    while (state_->count > 0) {
      if (state_->changed.WaitUntil(state_->mutex, Deadline::In(std::chrono::seconds(1)))) continue;
      CAIRN_RETURN_IF_ERROR(device_.Health());
    }
    return state_->status;
  }

 private:
  // Shared with the device, which may outlive a wait that a sticky error has ended.
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
