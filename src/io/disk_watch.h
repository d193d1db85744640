#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/stats.h"
#include "cairn/status.h"
#include "io/watched_queue.h"

namespace cairn {

/// Says which operation the disk does not answer, and when the disk counts as hung. For the queue's thread.
///
/// After kSlow (kSlowRemoval for what removes files, which takes as long as they are large) an event names the
/// operation and how long it has waited, again after pauses that double. After stall_timeout the disk hangs.
class DiskWatch {
 public:
  static constexpr std::chrono::seconds kSlow{1};
  static constexpr std::chrono::seconds kSlowRemoval{10};
  using Clock = Deadline::Clock;

  /// Zero for `stall_timeout`: it never counts as hung.
  explicit DiskWatch(std::chrono::nanoseconds stall_timeout) : stall_timeout_(stall_timeout) {}

  /// True if slow(), hangs() or removal_hangs() has changed. Adds what is to be reported.
  bool Look(const WatchedQueue& queue, std::vector<Event>& events);
  /// When to look again.
  [[nodiscard]] Deadline WakesAt(const WatchedQueue& queue) const;

  /// The operation that waits, for messages; empty if there is none.
  [[nodiscard]] const std::string& slow() const { return slow_; }
  /// Why saves fail; Ok unless an operation has waited for stall_timeout.
  [[nodiscard]] const Status& hangs() const { return hangs_; }
  /// The same of an operation that removes files.
  [[nodiscard]] const Status& removal_hangs() const { return removal_hangs_; }

 private:
  [[nodiscard]] Status Hangs(const WatchedQueue& queue, bool removals, Clock::time_point now) const;
  [[nodiscard]] std::optional<UnansweredOp> FindSlow(const WatchedQueue& queue, Clock::time_point now) const;

  const std::chrono::nanoseconds stall_timeout_;
  std::string slow_;
  Status hangs_;
  Status removal_hangs_;
  Clock::time_point hung_since_;
  Clock::time_point next_report_ = Clock::time_point::min();
  std::chrono::nanoseconds pause_ = kSlow;
};

/// For a call that waits for the disk as long as it takes: its events say for which operation, as DiskWatch has it.
class ReportingQueue : public WatchedQueue {
 public:
  ReportingQueue(std::unique_ptr<IoQueue> inner, EventCallback on_event)
      : WatchedQueue(std::move(inner)), on_event_(std::move(on_event)) {}

  Result<std::size_t> RunOnce(Deadline deadline) override;

 private:
  const EventCallback on_event_;
  DiskWatch watch_{std::chrono::nanoseconds(0)};
};

/// Queues of `make`, which report to `on_event`; it may be null.
[[nodiscard]] IoQueueFactory Reporting(IoQueueFactory make, EventCallback on_event);

}  // namespace cairn
