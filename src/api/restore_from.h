#pragma once

#include <functional>

#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

/// Options::restore_from, by rank 0, before the root is opened: if it has no checkpoint, brings the newest one from
/// there, by a process of the `cairn` command, which is the root's writer for that time. Calls `goes_on` now and then
/// as bytes move. Blocking, but for no longer than group_timeout in which nothing moves.
[[nodiscard]] Status BringNewest(const Options& options, const std::function<void()>& goes_on);

}  // namespace cairn
