#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cairn::trainer {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

enum class Phase : std::uint8_t { kNoStep, kStepping, kDraining };

/// The progress and speed of training, for the thread that handles signals.
struct Pace {
  std::atomic<Phase> phase{Phase::kNoStep};
  std::atomic<Clock::rep> step_begun{0};
  /// Duration of the last step; 0 before the first has ended.
  std::atomic<double> step_seconds{0};
  /// Duration of the last durable save; 0 before the first.
  std::atomic<double> save_seconds{0};

  [[nodiscard]] double StepSecondsLeft() const {
    const Clock::time_point begun{Clock::duration(step_begun.load())};
    return std::max(0.0, step_seconds - SecondsSince(begun));
  }
};

/// Resets the phase when the steps end, in whatever way.
class PhaseGuard {
 public:
  explicit PhaseGuard(Pace& pace) : pace_(pace) {}
  ~PhaseGuard() { pace_.phase = Phase::kNoStep; }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  Pace& pace_;
};

}  // namespace cairn::trainer
