#pragma once

#include <cstdint>

#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Whether a strategy that is opened now, as after a restart, restores exactly the state of `step`: read from the disk
/// (clean pages of its files are dropped first), every byte compared. Any failure is Corrupt. Overwrites the state.
Status CheckRestored(const StrategyKind& kind, const Workplace& workplace, std::uint64_t step);

}  // namespace cairn::bench
