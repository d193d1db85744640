#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/modelled_time.h"
#include "base/mutex.h"

namespace cairn {

/// Limits the bytes per second that several threads transfer together.
class RateLimit {
 public:
  /// With `time`, transfers advance that clock, and nobody sleeps.
  explicit RateLimit(double bytes_per_second, std::shared_ptr<ModelledTime> time = nullptr)
      : bytes_per_second_(bytes_per_second), modelled_(std::move(time)) {}

  /// Sleeps until there was time to transfer `bytes` more. Safe from any thread; calls are served in order.
  void Pass(std::uint64_t bytes) CAIRN_EXCLUDES(mutex_);

 private:
  const double bytes_per_second_;
  const std::shared_ptr<ModelledTime> modelled_;
  Mutex mutex_;
  // Never notified: only for timed waits.
  CondVar time_;
  // When the transfer of all bytes so far ends.
  Deadline::Clock::time_point passed_at_ CAIRN_GUARDED_BY(mutex_) = {};
};

}  // namespace cairn
