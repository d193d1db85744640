#pragma once

#include <functional>

namespace cairn::tools {

/// Catches the first SIGINT, SIGTERM or SIGHUP (unless that is ignored, as nohup does), so that work can clean up; the
/// returned function tells whether one came. The next signal of the same kind ends the process. A second call returns
/// the same.
[[nodiscard]] std::function<bool()> CatchInterruptions();

}  // namespace cairn::tools
