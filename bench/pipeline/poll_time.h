#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "cairn/options.h"

namespace cairn::bench {

/// The time until a deadline as poll takes it: at most a day; -1 for none.
inline int PollTime(Deadline deadline) {
  constexpr std::int64_t kDay = 86'400'000;
  if (deadline.infinite()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.when() - Deadline::Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kDay));
}

}  // namespace cairn::bench
