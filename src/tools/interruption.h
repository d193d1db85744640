#pragma once

#include <functional>

namespace cairn::tools {

/// From now on SIGINT, SIGTERM and SIGHUP end nothing: what is returned tells of them, for work that has something to
/// clean up first. A second call returns the same.
[[nodiscard]] std::function<bool()> CatchInterruptions();

}  // namespace cairn::tools
