#pragma once

#include <cstdint>

#include "bench/harness/flags.h"
#include "bench/harness/resources.h"
#include "bench/harness/training_loop.h"
#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

/// One training and its results.
struct Run {
  Flags flags;
  StrategyKind kind;
  int timed = 0;         ///< Iterations of the trainer that iteration_seconds is the median of; 0: as given.
  double copy_rate = 0;  ///< Of the emulated link, as measured. Bytes per second; 0 after a restart.
  LoopSettings loop;
  LoopRecord record;
  Usage used;
  std::uint64_t restored = 0;  ///< The step that was restored at the end.
};

/// NoSpace or ResourceExhausted, with the scale that fits, where a run needs more than there is.
Status CheckRoom(const Flags& flags);
/// Trains as asked, restores what was saved last, and compares. Corrupt if that is not what was saved; NoSpace and
/// ResourceExhausted before anything is done, with the scale that fits; Unsupported if the disk profile is
/// unavailable.
[[nodiscard]] Result<Run> Train(const Flags& flags);

}  // namespace cairn::bench
