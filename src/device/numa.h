#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace cairn {

struct NumaNode {
  int number = 0;
  /// Empty if the kernel does not say, or the node has none.
  std::vector<int> cpus;
};

/// The NUMA node next to a PCI device, given as "0000:3B:00.0", in either case. None if the kernel knows none. `root`
/// replaces "/" in tests.
[[nodiscard]] std::optional<NumaNode> NumaNodeOfPci(std::string bus_id, const std::string& root = {});

/// Asks the kernel to take this memory's pages from the node while that has some, and to move those that were touched
/// already. `memory` begins at a page. False, and nothing has changed, where the kernel refuses.
[[nodiscard]] bool PreferNode(MutableBytes memory, int node);

}  // namespace cairn
