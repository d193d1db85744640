#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "io/io_task.h"

namespace cairn {

/// Spreads copies over time. For the queue's thread.
class RateLimit {
 public:
  /// Bytes in a second. 0: no limit.
  explicit RateLimit(std::uint64_t per_second) : per_second_(per_second) {}

  /// Waits until so many bytes more may be copied, or `interrupted` says so. Blocks a thread of the queue, not the
  /// queue. `interrupted` outlives the task.
  IoTask<Status> Await(std::uint64_t bytes, const std::function<bool()>& interrupted);

 private:
  using Clock = std::chrono::steady_clock;
  const std::uint64_t per_second_;
  // When what was let through will have been copied at that rate.
  Clock::time_point next_;
};

}  // namespace cairn
