#pragma once

#include "cairn/options.h"

namespace cairn {

/// Whether what Cairn chooses for these options depends on how many ranks share the node.
[[nodiscard]] bool DependOnNodeRanks(const Options& options);

/// Checks the user's options, and fills in those that were left to Cairn (host_memory_bytes, chunk_bytes, queue_depth,
/// worker_threads) on a node that has so many ranks. InvalidArgument names the field, the value found and the values
/// allowed. ResourceExhausted if the process's memory control group cannot hold the pool.
[[nodiscard]] Result<Options> ResolveOptions(Options options, std::uint64_t ranks_of_node);

/// What one of these ranks may add to its pool now: a quarter of the memory that is available, divided by the ranks.
[[nodiscard]] std::uint64_t ChooseHostMemory(std::uint64_t ranks_of_node);

}  // namespace cairn
