#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "tune/choose.h"

namespace cairn {

/// Chooses the interval of a running job from the measured cost of its saves. Uses no clock, no lock and no I/O.
///
/// 1. The first calls of ShouldSave return false and time iterations without saves. t is the trimmed mean of the newest
///    such iterations.
/// 2. One save is made, and no other until it has ended.
/// 3. From then on each ended save adds two measurements: how long the disk was busy with it, and the time beyond t
///    that its iterations took, which is stall plus CPU time. ChooseInterval gets the medians of the newest ones (for a
///    slow disk, the third quartile of the writes).
class Steering {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The goal's iteration time is measured here.
  explicit Steering(const TuneGoal& goal) : goal_(goal) {}

  /// Whether to save `step`, which just ended. Call it after each step or every few steps. After a lower step (a
  /// restore) it starts again but keeps its measurements.
  [[nodiscard]] bool ShouldSave(std::uint64_t step, Time now);
  /// Call it for every save, also for those that ShouldSave did not ask for.
  void SaveBegun(std::uint64_t step);
  /// Call it in the order of ends. `begun` is the time of the call of Save. A failed save measures nothing.
  void SaveEnded(Time begun, Time ended, bool durable);

  /// None until a save has been measured.
  [[nodiscard]] const std::optional<IntervalChoice>& choice() const { return choice_; }
  [[nodiscard]] const TuneGoal& goal() const { return goal_; }
  [[nodiscard]] const SaveCost& cost() const { return cost_; }
  /// Explains, for people, which bound binds, or what is still missing.
  [[nodiscard]] std::string why() const;

 private:
  void RecordStep(std::uint64_t step, Time now);
  void RecordStall();
  void Choose();

  TuneGoal goal_;
  SaveCost cost_;
  std::optional<IntervalChoice> choice_;

  // The last call of ShouldSave.
  std::optional<std::uint64_t> step_;
  Time time_;
  // Since then a save began, ended or was in flight, or the time was not training's.
  bool disturbed_ = true;

  // Of the newest save.
  std::optional<std::uint64_t> saved_step_;
  // Seconds that the newest save's iterations took beyond t so far. None once recorded.
  std::optional<double> excess_;
  // When the last save ended.
  Time disk_free_;
  int in_flight_ = 0;

  // The newest of each, oldest first, in seconds.
  std::deque<double> clean_iterations_;
  std::deque<double> stalls_;
  std::deque<double> writes_;
};

}  // namespace cairn
