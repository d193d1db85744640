#pragma once

#include <map>
#include <string>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

// Blocking forms of a group's waits. Never call them from a callback of the group.

/// Group::Await, until it ends.
[[nodiscard]] Result<std::string> AwaitMessage(Group& group, const std::string& key, Deadline deadline);

/// The messages that arrived, by rank. `end` is not ok if some are missing.
struct CollectedMessages {
  std::map<int, std::string> messages;
  Status end;
};
/// Group::Collect, until it ends.
[[nodiscard]] CollectedMessages CollectMessages(Group& group, const std::string& key, Deadline deadline);

}  // namespace cairn
