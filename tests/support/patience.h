#pragma once

#include <chrono>

#include "cairn/options.h"

namespace cairn {

/// What should come soon comes within this time, also on a busy machine.
inline constexpr std::chrono::seconds kPatience{60};
[[nodiscard]] inline Deadline Soon() { return Deadline::In(kPatience); }

}  // namespace cairn
