#pragma once

#include "cairn/status.h"

namespace cairn::bench {

/// What the benchmarks' programs exit with, and what a launcher makes of it.
inline constexpr int kExitOk = 0;
inline constexpr int kExitCorrupt = 1;
inline constexpr int kExitFailed = 2;
inline constexpr int kExitSkipped = 77;

inline int ExitCodeOf(const Status& status) {
  if (status.ok()) return kExitOk;
  if (status.code() == StatusCode::kUnsupported) return kExitSkipped;
  return status.code() == StatusCode::kCorrupt ? kExitCorrupt : kExitFailed;
}

}  // namespace cairn::bench
