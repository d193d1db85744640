#pragma once

#include <map>
#include <string>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

// Blocking forms of a group's waits. Never call them from a callback of the group.

/// Group::Await, until it ends.
[[nodiscard]] Result<std::string> AwaitWord(Group& group, const std::string& key, Deadline deadline);

/// The words that arrived, by rank. `end` is not ok if some are missing.
struct CollectedWords {
  std::map<int, std::string> words;
  Status end;
};
/// Group::Collect, until it ends.
[[nodiscard]] CollectedWords CollectWords(Group& group, const std::string& key, Deadline deadline);

}  // namespace cairn
