#include "io/disk_watch.h"

#include <algorithm>

#include "base/human.h"
#include "base/status_macros.h"

namespace cairn {
bool DiskWatch::Look(const WatchedQueue& queue, std::vector<Event>& events) {
  const Clock::time_point now = Clock::now();
  const std::optional<UnansweredOp> slow = FindSlow(queue, now);
  Status hangs = Hangs(queue, /*removals=*/false, now);
  Status removal_hangs = Hangs(queue, /*removals=*/true, now);
  bool changed = slow.has_value() == slow_.empty() || removal_hangs.ok() != removal_hangs_.ok();
  removal_hangs_ = std::move(removal_hangs);
  if (hangs.ok() != hangs_.ok()) {
    changed = true;
    if (hangs.ok()) {
      events.push_back({.severity = Severity::kWarning,
                        .message = fmt::format("the disk answers again, after {}: saves are taken again",
                                               HumanDuration(now - hung_since_)),
                        .phase = "disk",
                        .duration = now - hung_since_});
    } else {
      hung_since_ = queue.OldestSince(/*removals=*/false);
      events.push_back(
          {.severity = Severity::kError,
           .status = hangs,
           .message = fmt::format("{}: saves that wait for it fail, and further ones are refused until it answers",
                                  hangs.message()),
           .phase = "disk",
           .duration = now - hung_since_,
           .path = queue.Oldest(/*removals=*/false)->path});
    }
  }
  hangs_ = std::move(hangs);
  if (!slow) {
    slow_.clear();
    if (now >= next_report_) pause_ = kSlow;
    return changed;
  }
  if (changed) slow_ = DescribeWait(*slow);
  if (now < next_report_) return changed;
  slow_ = DescribeWait(*slow);
  next_report_ = now + 2 * std::exchange(pause_, 2 * pause_);
  events.push_back({.severity = Severity::kWarning,
                    .message = slow_,
                    .phase = "disk",
                    .duration = now - slow->since,
                    .path = slow->path});
  return true;
}

std::optional<UnansweredOp> DiskWatch::FindSlow(const WatchedQueue& queue, Clock::time_point now) const {
  // Not now minus the limit: the clock may have begun a moment ago.
  const auto waits = [&](bool removals, std::chrono::nanoseconds limit) {
    const Clock::time_point since = queue.OldestSince(removals);
    return since < now && now - since >= limit;
  };
  if (waits(false, kSlow)) return queue.Oldest(false);
  if (waits(true, kSlowRemoval)) return queue.Oldest(true);
  return std::nullopt;
}

Status DiskWatch::Hangs(const WatchedQueue& queue, bool removals, Clock::time_point now) const {
  const Clock::time_point since = queue.OldestSince(removals);
  if (stall_timeout_.count() == 0 || since >= now || now - since < stall_timeout_) return Status::Ok();
  return DiskHangs(*queue.Oldest(removals), stall_timeout_);
}

Deadline DiskWatch::WakesAt(const WatchedQueue& queue) const {
  Clock::time_point wake = Clock::time_point::max();
  const auto add = [&](bool removals, std::chrono::nanoseconds limit, bool hung) {
    const Clock::time_point since = queue.OldestSince(removals);
    if (since == Clock::time_point::max()) return;
    wake = std::min(wake, std::max(since + limit, next_report_));
    if (!hung && stall_timeout_.count() != 0) wake = std::min(wake, since + stall_timeout_);
  };
  add(false, kSlow, !hangs_.ok());
  add(true, kSlowRemoval, !removal_hangs_.ok());
  return Deadline::At(wake);
}

Result<std::size_t> ReportingQueue::RunOnce(Deadline deadline) {
  while (true) {
    const Deadline look = watch_.WakesAt(*this);
    const bool looks = look.when() < deadline.when();
    Result<std::size_t> called = WatchedQueue::RunOnce(looks ? look : deadline);
    std::vector<Event> events;
    watch_.Look(*this, events);
    for (const Event& event : events) on_event_(event);
    if (!called.ok() || *called != 0 || !looks || !look.passed()) return called;
  }
}

IoQueueFactory Reporting(IoQueueFactory make, EventCallback on_event) {
  if (!on_event) return make;
  return [make = std::move(make), on_event = std::move(on_event)]() -> Result<std::unique_ptr<IoQueue>> {
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, make());
    return std::unique_ptr<IoQueue>(std::make_unique<ReportingQueue>(std::move(queue), on_event));
  };
}

}  // namespace cairn
