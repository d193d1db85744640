#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace cairn {

/// Who is woken when a full lane of a device has room again. Safe from any thread.
class RoomWaiters {
 public:
  using Wake = std::function<void()>;

  /// Until `wake` is destroyed.
  void Add(std::weak_ptr<const Wake> wake) CAIRN_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::erase_if(waiters_, [](const auto& waiter) { return waiter.expired(); });
    waiters_.push_back(std::move(wake));
  }
  void WakeAll() const CAIRN_EXCLUDES(mutex_) {
    std::vector<std::weak_ptr<const Wake>> waiters;
    {
      const MutexLock lock(mutex_);
      waiters = waiters_;
    }
    for (const auto& waiter : waiters) {
      if (const auto wake = waiter.lock()) (*wake)();
    }
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<const Wake>> waiters_ CAIRN_GUARDED_BY(mutex_);
};

/// The operations outstanding in one lane. Safe from any thread.
class LaneRoom {
 public:
  LaneRoom(std::uint64_t most, std::shared_ptr<const RoomWaiters> waiters)
      : most_(most), waiters_(std::move(waiters)) {}

  [[nodiscard]] bool HasRoom() const { return outstanding_ < most_; }
  void Take(std::uint64_t operations) { outstanding_ += operations; }
  void GiveBack(std::uint64_t operations) {
    const std::uint64_t before = outstanding_.fetch_sub(operations);
    if (before >= most_ && before - operations < most_) waiters_->WakeAll();
  }

 private:
  const std::uint64_t most_;
  const std::shared_ptr<const RoomWaiters> waiters_;
  std::atomic<std::uint64_t> outstanding_{0};
};

}  // namespace cairn
