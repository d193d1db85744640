#pragma once

#include <vector>

#include "restore/plan.h"

namespace cairn {

/// Marks the copies whose targets' memory may overlap another's: views of one buffer that are not the very same tensor.
/// The copies of one target write different elements of it.
void MarkSharedMemory(std::vector<std::vector<PlannedCopy>>& copies);

}  // namespace cairn
