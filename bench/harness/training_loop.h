#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/harness/journal.h"
#include "bench/harness/save_log.h"
#include "bench/harness/training_state.h"
#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The loop's clock, in seconds since it began. Tests pass another one.
struct LoopClock {
  std::function<double()> now;
  std::function<void(double)> wait_until;
};
/// The machine's own, from now on.
[[nodiscard]] LoopClock RealClock();

struct LoopSettings {
  double iteration_seconds = 0;  ///< Of one iteration without delays.
  double update_seconds = 0;     ///< Its part that is the optimizer step, which writes the state.
  std::uint64_t every = 0;       ///< A save after each iteration that is a multiple of it. 0: none.
  std::uint64_t again = 0;       ///< One more save so many iterations after each of those. 0: none.
  std::uint64_t iterations = 0;  ///< The last one.
  std::uint64_t warmup = 0;      ///< How many of the first ones Account leaves out.
  std::uint64_t first = 1;       ///< More than 1 after a restart.
};

/// What happened, iteration by iteration. Seconds.
struct LoopRecord {
  std::vector<double> stalls;  ///< By iteration: time in Save and BeforeUpdate.
  std::vector<double> ends;    ///< By iteration.
  std::vector<SaveRecord> saves;
  double end = 0;          ///< The last iteration, and its save's call, had ended.
  double drained = 0;      ///< Everything was durable.
  double update_late = 0;  ///< By how much optimizer steps were longer than update_seconds, in all.
};

/// Whether the iteration is followed by a save.
[[nodiscard]] bool SavesAfter(const LoopSettings& settings, std::uint64_t step);

/// What an iteration does. [interface]
class Compute {
 public:
  virtual ~Compute() = default;
  /// Forward and backward, of an iteration that began at this time: only read the state.
  virtual Status Forward(double began) = 0;
  /// The optimizer step: the state becomes that of `step`.
  virtual Status Update(std::uint64_t step) = 0;
};

/// Forward and backward wait for a deadline, and the update really rewrites the state. Deadlines count from the begin
/// of the iteration, so that later iterations never make up for a stall.
class PacedCompute : public Compute {
 public:
  /// All of them outlive it.
  PacedCompute(const LoopSettings& settings, const LoopClock& clock, TrainingState& state)
      : settings_(settings), clock_(clock), state_(state) {}
  Status Forward(double began) override;
  Status Update(std::uint64_t step) override;

 private:
  const LoopSettings& settings_;
  const LoopClock& clock_;
  TrainingState& state_;
};

/// Trains: forward and backward, asks the strategy whether the state may be overwritten, and updates it. Then drains.
///
/// Iteration n makes the state that of step n, from 1 on; it is saved after the update. Returns the first error. `log`
/// also gets the strategy's durable steps; its times are by the same clock. `journal` may be null.
[[nodiscard]] Result<LoopRecord> RunLoop(const LoopSettings& settings, const LoopClock& clock, Compute& compute,
                                         Strategy& strategy, SaveLog& log, const Journal* journal = nullptr);

}  // namespace cairn::bench
