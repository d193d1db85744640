#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "tune/choose.h"

namespace cairn {

/// Chooses the interval of a running job from what its own saves cost. A function of what it is told: no clock, no
/// lock, no I/O.
///
/// 1. The first calls of ShouldSave answer no: they time iterations that no save touches. t is the trimmed mean of the
///    newest of those, whenever there are some.
/// 2. One save is made, and no other until it has ended.
/// 3. From then on each ended save adds a measurement: how long the disk was busy with it, and what its iterations took
///    more than t each, which is stall and stolen time together, on whichever side of a fence it was felt. Of the
///    newest the medians count (one in four longer writes for a slow disk), and ChooseInterval decides.
class Steering {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The goal's iteration time is measured here.
  explicit Steering(const TuneGoal& goal) : goal_(goal) {}

  /// Whether to save `step`, which has just been done. Called once after each, or after each few: steps count.
  /// A lower step than before (a restore) begins anew, with what was measured.
  [[nodiscard]] bool ShouldSave(std::uint64_t step, Time now);
  /// Any save, ours or one that the caller made for reasons of its own.
  void SaveBegun(std::uint64_t step);
  /// In the order of their ends. `begun` is the time of the call of Save. One that failed measures nothing.
  void SaveEnded(Time begun, Time ended, bool durable);

  /// None until a save has been measured.
  [[nodiscard]] const std::optional<IntervalChoice>& choice() const { return choice_; }
  [[nodiscard]] const TuneGoal& goal() const { return goal_; }
  [[nodiscard]] const SaveCost& cost() const { return cost_; }
  /// For a person: which bound binds, or what is being waited for.
  [[nodiscard]] std::string why() const;

 private:
  void Account(std::uint64_t step, Time now);
  void CloseSave();
  void Choose();

  TuneGoal goal_;
  SaveCost cost_;
  std::optional<IntervalChoice> choice_;

  // The last call of ShouldSave.
  std::optional<std::uint64_t> step_;
  Time time_;
  bool touched_ =
      true;  // Since then a save was begun, ended or in flight; or the time since then is none of training's.

  std::optional<std::uint64_t> saved_step_;  // Of the youngest save.
  Time disk_free_;                           // When the newest ended save had ended.
  int in_flight_ = 0;
  std::optional<double> excess_;  // Of the youngest save's iterations so far; none once it is accounted for.

  // The newest of each, oldest first. Seconds.
  std::deque<double> clean_iterations_;
  std::deque<double> stalls_;
  std::deque<double> writes_;
};

}  // namespace cairn
