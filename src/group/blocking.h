#pragma once

#include <map>
#include <string>

#include "cairn/group.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

// A group's waits for threads that may block. Never to be called from within a callback of the group's.

/// Group::Await, until it ends.
[[nodiscard]] Result<std::string> AwaitWord(Group& group, const std::string& key, Deadline deadline);

struct CollectedWords {
  std::map<int, std::string> words;  ///< By rank: those that came.
  Status end;                        ///< Not ok where some did not come.
};
/// Group::Collect, until it ends.
[[nodiscard]] CollectedWords CollectWords(Group& group, const std::string& key, Deadline deadline);

}  // namespace cairn
