#pragma once

#include <future>
#include <map>
#include <string>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

// Forms of a group's waits for callers that block. Never wait for one of these in a callback of the group.

/// Group::Await.
[[nodiscard]] std::future<Result<std::string>> AwaitMessage(Group& group, const std::string& key, Deadline deadline);

/// The messages that arrived, by rank. `end` is not ok if some are missing.
struct CollectedMessages {
  std::map<int, std::string> messages;
  Status end;
};
/// Group::Collect.
[[nodiscard]] std::future<CollectedMessages> CollectMessages(Group& group, const std::string& key, Deadline deadline);

}  // namespace cairn
