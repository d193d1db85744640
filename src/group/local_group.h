#pragma once

#include <memory>
#include <vector>

#include "group/group.h"

namespace cairn {

/// `size` ranks within one process, each with an end of its own. For tests and experiments. The ends may be used from
/// any thread and outlive each other; a thread of the group's own watches the deadlines.
[[nodiscard]] std::vector<std::shared_ptr<Group>> MakeLocalGroup(int size);

}  // namespace cairn
