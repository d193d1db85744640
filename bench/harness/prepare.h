#pragma once

#include <cstdint>

#include "bench/emulation/gpu.h"
#include "bench/harness/training_loop.h"
#include "bench/harness/training_state.h"
#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

// What a run does before its loop begins.

/// Bytes per second of one copy of the whole state to the host, buffer by buffer.
[[nodiscard]] Result<double> MeasureCopies(const DeviceState& state, Gpu& gpu);
/// The time that the optimizer step is given, twice what it needs. InvalidArgument if that is more than half of the
/// iteration, also after five seconds of updates: a shared machine can be slow for a while.
[[nodiscard]] Result<double> MeasureUpdate(TrainingState& state, std::uint64_t step, double iteration_seconds,
                                           const LoopClock& clock = RealClock());
/// Sets the state to that of the newest checkpoint, or of step 0 if there is none; returns the step. Corrupt if what
/// was restored is not the state of its step.
[[nodiscard]] Result<std::uint64_t> Begin(Strategy& strategy, TrainingState& state, bool resume);

}  // namespace cairn::bench
