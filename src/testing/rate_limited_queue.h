#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/modelled_time.h"
#include "base/mutex.h"
#include "io/io_queue.h"

namespace cairn {

/// One disk of a given speed, shared by every queue made through it. Safe from any thread.
///
/// Reads and writes, or writes alone, pass one after the other, in the order of submission over all queues; each takes
/// its length divided by the rate. The operation itself runs at once, but its completion is reported only after that
/// time. Other operations are not delayed. With a modelled time nothing waits: that time advances by what the disk
/// takes, and completions come in the order in which they are due.
class RateLimitedDisk : public std::enable_shared_from_this<RateLimitedDisk> {
 public:
  using Clock = Deadline::Clock;

  enum class Limits : std::uint8_t { kReadsAndWrites, kWrites };
  [[nodiscard]] static std::shared_ptr<RateLimitedDisk> Make(std::uint64_t bytes_per_second,
                                                             Limits limits = Limits::kReadsAndWrites,
                                                             std::shared_ptr<ModelledTime> time = nullptr) {
    return std::shared_ptr<RateLimitedDisk>(new RateLimitedDisk(bytes_per_second, limits, std::move(time)));
  }

  /// A factory of queues on this disk. For Wiring::wrap_queue: [disk](auto inner) { return disk->Wrap(inner); }
  [[nodiscard]] IoQueueFactory Wrap(IoQueueFactory inner);
  /// For what is submitted from now on. At least 1.
  void SetRate(std::uint64_t bytes_per_second) CAIRN_EXCLUDES(mutex_);
  /// When the disk is done with `bytes` that are given to it now: for writers without a queue.
  [[nodiscard]] Clock::time_point Take(std::uint64_t bytes) CAIRN_EXCLUDES(mutex_);
  /// Bytes asked of the disk so far.
  [[nodiscard]] std::uint64_t bytes() const CAIRN_EXCLUDES(mutex_);

 private:
  RateLimitedDisk(std::uint64_t bytes_per_second, Limits limits, std::shared_ptr<ModelledTime> time)
      : limits_(limits), time_(std::move(time)), rate_(bytes_per_second) {}
  [[nodiscard]] Clock::time_point Now() const { return time_ != nullptr ? time_->Now() : Clock::now(); }

  friend class RateLimitedQueue;
  const Limits limits_;
  const std::shared_ptr<ModelledTime> time_;  // Null: the real one.
  mutable Mutex mutex_;
  std::uint64_t rate_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  Clock::time_point busy_until_ CAIRN_GUARDED_BY(mutex_) = Clock::time_point::min();
};

}  // namespace cairn
