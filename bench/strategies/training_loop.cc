#include "bench/strategies/training_loop.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/status_macros.h"

namespace cairn::bench {

LoopClock RealClock() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  return {.now = [begin] { return std::chrono::duration<double>(Clock::now() - begin).count(); },
          .wait_until =
              [begin](double at) {
                std::this_thread::sleep_until(
                    begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at)));
              }};
}

Result<LoopRecord> RunLoop(const LoopSettings& settings, const LoopClock& clock, TrainingState& state,
                           Strategy& strategy, SaveLog& log) {
  LoopRecord record;
  for (std::uint64_t step = 1; step <= settings.iterations; ++step) {
    clock.wait_until(clock.now() + settings.iteration_seconds - settings.update_seconds);

    const double fenced = clock.now();
    CAIRN_RETURN_IF_ERROR(strategy.BeforeUpdate());
    const double updating = clock.now();
    state.Update(step);
    clock.wait_until(updating + settings.update_seconds);
    const double updated = clock.now();
    record.update_late += std::max(0.0, updated - updating - settings.update_seconds);

    double stall = updating - fenced;
    if (settings.every != 0 && step % settings.every == 0) {
      log.Started(step, updated);
      CAIRN_RETURN_IF_ERROR(strategy.Save(step));
      const double returned = clock.now();
      log.Returned(returned);
      stall += returned - updated;
    }
    record.stalls.push_back(stall);
  }
  record.end = clock.now();
  CAIRN_RETURN_IF_ERROR(strategy.Drain());
  record.drained = clock.now();
  record.saves = log.saves();
  return record;
}

}  // namespace cairn::bench
