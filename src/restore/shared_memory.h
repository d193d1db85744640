#pragma once

#include <vector>

#include "restore/match.h"

namespace cairn {

/// Marks the copies whose targets may overlap another target in memory, such as views of one buffer. Copies of the same
/// target write different elements and need no mark.
void MarkSharedMemory(std::vector<std::vector<PlannedCopy>>& copies);

}  // namespace cairn
