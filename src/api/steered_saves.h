#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/modelled_time.h"
#include "base/mutex.h"
#include "cairn/options.h"
#include "engine/save_task.h"
#include "tune/steering.h"

namespace cairn {

/// Feeds the saves of one Checkpointer to Steering, and asks it when to save. Safe from any thread.
class SteeredSaves {
 public:
  /// `now` is the clock by which iterations are timed.
  [[nodiscard]] static std::unique_ptr<SteeredSaves> Make(const SteeringOptions& options,
                                                          TimeSource now = Steering::Time::clock::now);

  /// Call it for each save, when it has just been accepted.
  void Begun(const std::shared_ptr<SaveTask>& task) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool ShouldSave(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  /// The interval and its reason.
  void AddStats(CheckpointerStats& stats) const CAIRN_EXCLUDES(mutex_);

 private:
  SteeredSaves(const TuneGoal& goal, TimeSource now) : now_(std::move(now)), steering_(goal) {}
  /// Reports the saves that have ended to `steering_`, and forgets them.
  void ReportEnded(Steering::Time now) CAIRN_REQUIRES(mutex_);

  const TimeSource now_;
  mutable Mutex mutex_;
  Steering steering_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<SaveTask>> in_flight_ CAIRN_GUARDED_BY(mutex_);  // Oldest first.
};

}  // namespace cairn
