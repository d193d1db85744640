#pragma once

#include <cstdint>

#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

// How the nodes of a workplace's group make one checkpoint of what each of them writes. Without a group both return at
// once. Every wait ends with an error soon after a node has gone.
//
// 1. Each node makes its part of step N durable, and keeps its newest checkpoint before N.
// 2. It waits until all nodes have done that (AwaitDurableOnAll). Only now does step N count, and only now may what
//    was before it be overwritten.
// 3. After a restart each node knows its newest step, and they take the least (NewestOnAll). By 2 no node's newest is
//    further than one checkpoint ahead of another's, and a node that is ahead still has the one before.

/// This node has `step` durable: waits until every node has. One call at a time, with increasing steps.
Status AwaitDurableOnAll(const Workplace& workplace, std::uint64_t step);

/// The newest step that every node has, of `newest`, which is this node's, or why it has none. NotFound if a node has
/// none. Once for a group.
[[nodiscard]] Result<std::uint64_t> NewestOnAll(const Workplace& workplace, const Result<std::uint64_t>& newest);

}  // namespace cairn::bench
