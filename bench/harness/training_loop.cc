#include "bench/harness/training_loop.h"

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

bool SavesAfter(const LoopSettings& settings, std::uint64_t step) {
  if (settings.every == 0 || step < settings.every) return false;
  const std::uint64_t past = step % settings.every;
  return past == 0 || past == settings.again;
}

Status PacedCompute::Forward(double began) {
  clock_.wait_until(began + settings_.iteration_seconds - settings_.update_seconds);
  return {};
}

Status PacedCompute::Update(std::uint64_t step) {
  const double began = clock_.now();
  CAIRN_RETURN_IF_ERROR(state_.Update(step));
  clock_.wait_until(began + settings_.update_seconds);
  return {};
}

Result<LoopRecord> RunLoop(const LoopSettings& settings, const LoopClock& clock, Compute& compute, Strategy& strategy,
                           SaveLog& log, const Journal* journal) {
  LoopRecord record;
  if (journal != nullptr) journal->Begin(settings.first - 1);
  for (std::uint64_t step = settings.first; step <= settings.iterations; ++step) {
    const double began = clock.now();
    // The journal is kept while forward and backward would run.
    if (journal != nullptr && !record.stalls.empty()) {
      journal->Iteration(step - 1, record.stalls.back(), strategy.process());
    }
    CAIRN_RETURN_IF_ERROR(compute.Forward(began));

    const double fenced = clock.now();
    CAIRN_RETURN_IF_ERROR(strategy.BeforeUpdate());
    const double updating = clock.now();
    CAIRN_RETURN_IF_ERROR(compute.Update(step));
    const double updated = clock.now();
    record.update_late += std::max(0.0, updated - updating - settings.update_seconds);

    double stall = updating - fenced;
    if (SavesAfter(settings, step)) {
      log.Started(step, updated);
      if (journal != nullptr) journal->Save(step);
      CAIRN_RETURN_IF_ERROR(strategy.Save(step));
      const double returned = clock.now();
      log.Returned(returned);
      stall += returned - updated;
    }
    record.stalls.push_back(stall);
    record.ends.push_back(clock.now());
  }
  record.end = clock.now();
  if (journal != nullptr) {
    if (!record.stalls.empty()) {
      journal->Iteration(settings.iterations, record.stalls.back(), strategy.process());
    }
    journal->End(settings.iterations);
  }
  CAIRN_RETURN_IF_ERROR(strategy.Drain());
  record.drained = clock.now();
  record.saves = log.saves();
  return record;
}

}  // namespace cairn::bench
