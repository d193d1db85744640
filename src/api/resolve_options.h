#pragma once

#include "cairn/options.h"

namespace cairn {

/// Checks what a user set and fills in what was left to the machine (worker_threads). InvalidArgument names the field,
/// the value found and what would do; ResourceExhausted a pool that the process's memory control group cannot hold.
[[nodiscard]] Result<Options> ResolveOptions(Options options);

}  // namespace cairn
