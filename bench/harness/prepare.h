#pragma once

#include <cstdint>

#include "bench/emulation/gpu.h"
#include "bench/harness/training_state.h"
#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

// What a run does before its loop begins.

/// Bytes per second of one copy of the whole state to the host, buffer by buffer.
[[nodiscard]] Result<double> MeasureCopies(const DeviceState& state, Gpu& gpu);
/// The time that the optimizer step is given. InvalidArgument if that is more than half of the iteration.
[[nodiscard]] Result<double> MeasureUpdate(TrainingState& state, std::uint64_t step, double iteration_seconds);
/// Sets the state to that of the newest checkpoint, or of step 0 if there is none; returns the step. Corrupt if what
/// was restored is not the state of its step.
[[nodiscard]] Result<std::uint64_t> Begin(Strategy& strategy, TrainingState& state, bool resume);

}  // namespace cairn::bench
