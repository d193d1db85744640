#pragma once

#include <memory>
#include <thread>

#include "testing/rate_limited_queue.h"

namespace cairn::bench {

/// The emulated disk, for writers without a queue: Begin when bytes are given to the disk, End before they are reported
/// as written. The real writing goes on in between (StartWriteBack), and End waits until the emulated disk would be
/// done; the flush comes after it and takes as long as the real disk does. Without an emulated disk both return at
/// once.
class DiskPace {
 public:
  explicit DiskPace(std::shared_ptr<RateLimitedDisk> disk) : disk_(std::move(disk)) {}

  void Begin(std::uint64_t bytes) {
    if (disk_ != nullptr) due_ = disk_->Take(bytes);
  }
  void End() const {
    if (disk_ != nullptr) std::this_thread::sleep_until(due_);
  }

 private:
  const std::shared_ptr<RateLimitedDisk> disk_;
  RateLimitedDisk::Clock::time_point due_ = RateLimitedDisk::Clock::time_point::min();
};

}  // namespace cairn::bench
