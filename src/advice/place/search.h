#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "advice/place/placement.h"

namespace cairn {

struct SearchOptions {
  /// Equal seeds give equal results, on every machine.
  std::uint64_t seed = 1;
  /// Placements whose cost is computed. More may find better ones.
  std::size_t evaluations = 50'000;
  /// Also begin with the two simple orders; the result is then never worse than the better of them.
  bool simple_orders = true;
};

struct FoundPlacement {
  Groups groups;
  PlacementCost cost;
};

/// Searches the placement of the least total cost, with a genetic algorithm whose children are improved by local moves
/// (GCMA, as DT-FM uses it). `current`: another placement to begin with.
///
/// The population: the simple orders, the same of devices sorted into neighbourhoods, and random ones. A child has each
/// stretch of devices from one of two parents, whose stages are renamed first so that they agree as far as they can.
/// Devices of stages that are too large go to those that are too small. Then pairs of devices in different stages are
/// exchanged as long as that helps: first a smooth cost, because an exchange rarely changes a maximum, then the total.
/// The child takes the place of the worst one, unless the population has its like.
[[nodiscard]] FoundPlacement SearchPlacement(const Network& network, const PlacementJob& job,
                                             const SearchOptions& options,
                                             const std::optional<Groups>& current = std::nullopt);

}  // namespace cairn
