#pragma once

#include <optional>
#include <string>

#include "base/bytes.h"

namespace cairn {

/// The NUMA node next to a PCI device, given as "0000:3B:00.0", in either case. None if the kernel knows none. `root`
/// replaces "/" in tests.
[[nodiscard]] std::optional<int> NumaNodeOfPci(std::string bus_id, const std::string& root = {});

/// Asks the kernel to take this memory's pages from the node while that has some, and to move those that were touched
/// already. `memory` begins at a page. False, and nothing has changed, where the kernel refuses.
[[nodiscard]] bool PreferNode(MutableBytes memory, int node);

}  // namespace cairn
