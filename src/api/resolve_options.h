#pragma once

#include "cairn/options.h"

namespace cairn {

/// Checks the user's options, and fills in those that were left to Cairn (host_memory_bytes, chunk_bytes,
/// worker_threads). InvalidArgument names the field, the value found and the values allowed. ResourceExhausted if the
/// process's memory control group cannot hold the pool.
[[nodiscard]] Result<Options> ResolveOptions(Options options);

/// How many ranks share this node's memory: LOCAL_WORLD_SIZE, or `world` where that is not set.
[[nodiscard]] std::uint64_t RanksOfNode(int world);

/// What one of them may add to its pool now: a quarter of the memory that is available, divided by the ranks.
[[nodiscard]] std::uint64_t ChooseHostMemory(int world);

}  // namespace cairn
