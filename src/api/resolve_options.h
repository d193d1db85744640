#pragma once

#include "cairn/options.h"

namespace cairn {

/// Checks the user's options, and fills in those that were left to Cairn (chunk_bytes, worker_threads).
/// InvalidArgument names the field, the value found and the values allowed. ResourceExhausted if the process's memory
/// control group cannot hold the pool.
[[nodiscard]] Result<Options> ResolveOptions(Options options);

}  // namespace cairn
