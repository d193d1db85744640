#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/modelled_time.h"
#include "base/mutex.h"

namespace cairn {

/// A link that several threads share: together they pass no more than so many bytes a second through it.
class RateLimit {
 public:
  /// With `time`, bytes move that time on, and nobody sleeps.
  explicit RateLimit(double bytes_per_second, std::shared_ptr<ModelledTime> time = nullptr)
      : bytes_per_second_(bytes_per_second), modelled_(std::move(time)) {}

  /// Sleeps until `bytes` more have had the time to pass. Safe from any thread; in the order of the calls.
  void Pass(std::uint64_t bytes) CAIRN_EXCLUDES(mutex_);

 private:
  const double bytes_per_second_;
  const std::shared_ptr<ModelledTime> modelled_;
  Mutex mutex_;
  CondVar time_;                                                         // Never notified: it gives timed waits.
  Deadline::Clock::time_point passed_at_ CAIRN_GUARDED_BY(mutex_) = {};  // When all bytes so far are through.
};

}  // namespace cairn
