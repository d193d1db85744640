#pragma once

#include <functional>

namespace cairn::tools {

/// From now on the first SIGINT, SIGTERM or SIGHUP ends nothing: what is returned tells of it, for work that has
/// something to clean up first. The next one of the same kind ends the process. A second call returns the same.
[[nodiscard]] std::function<bool()> CatchInterruptions();

}  // namespace cairn::tools
