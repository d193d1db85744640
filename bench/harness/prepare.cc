#include "bench/harness/prepare.h"

#include <algorithm>
#include <limits>

#include "base/status_macros.h"
#include "bench/emulation/host_memory.h"

namespace cairn::bench {

Result<double> MeasureCopies(const DeviceState& state, Gpu& gpu) {
  const std::uint64_t bytes = std::min<std::uint64_t>(state.bytes(), 64U << 20);
  CAIRN_ASSIGN_OR_RETURN(const auto pool, MakePinnedMemory(gpu, bytes, bytes));
  const BufferPool::Chunk buffer = pool->TryAcquire(BufferPool::Priority::kSave);
  const LoopClock clock = RealClock();
  for (std::uint64_t at = 0; at < state.bytes(); at += bytes) {
    const std::uint64_t n = std::min(bytes, state.bytes() - at);
    CAIRN_RETURN_IF_ERROR(gpu.CopyToHost(state, at, {buffer.data(), n}));
  }
  return static_cast<double>(state.bytes()) / clock.now();
}

Result<double> MeasureUpdate(TrainingState& state, std::uint64_t step, double iteration_seconds,
                             const LoopClock& clock) {
  constexpr int kAtLeast = 3;
  constexpr double kGoOnSeconds = 5;  // A shared machine can be slow for this long, and then keep the pace.
  constexpr double kHopeless = 4;     // Times the pace: a machine that is merely disturbed does better.
  const double pace = iteration_seconds / 4;
  double least = std::numeric_limits<double>::max();
  const double begun = clock.now();
  double now = begun;
  for (int i = 0; i < kAtLeast || (least > pace && least < kHopeless * pace && now - begun < kGoOnSeconds); ++i) {
    const double before = clock.now();
    CAIRN_RETURN_IF_ERROR(state.Update(step));
    now = clock.now();
    least = std::min(least, now - before);
  }
  if (least <= pace) return 2 * least;
  return Error(StatusCode::kInvalidArgument,
               "--iteration-seconds {}: rewriting {} bytes takes {:.4f} s of it; expected at least {:.4f}",
               iteration_seconds, state.bytes(), least, 4 * least);
}

Result<std::uint64_t> Begin(Strategy& strategy, TrainingState& state, bool resume) {
  const Result<std::uint64_t> restored = resume ? strategy.Restore() : Status(StatusCode::kNotFound, "");
  if (restored.status().code() == StatusCode::kNotFound) {
    CAIRN_RETURN_IF_ERROR(state.Initialize());
    return 0;
  }
  if (!restored.ok()) return restored.status();
  CAIRN_ASSIGN_OR_RETURN(const bool same, state.Is(*restored));
  if (same) return *restored;
  return Error(StatusCode::kCorrupt, "what was restored is not the state of step {}", *restored);
}

}  // namespace cairn::bench
