#pragma once

#include <functional>
#include <string>

#include "cairn/group.h"

namespace cairn {

/// The store of a group over files in a folder, which is made if it is missing. For the options' rank and name:
///
///   <folder>/.lock           locked by rank 0 while it has the group
///   <folder>/run-<name>/     a file for each key
///
/// A file is written under another name first, so that a reader finds it whole; only the numbers of `add` are changed
/// in place, under a lock. In StoreLink's protocol each value has a fresh id in its name or its content, so what
/// earlier runs have left does no harm. Rank 0 removes it when it has the lock: then no other rank 0 lives.
[[nodiscard]] std::function<Result<KeyValueStore>()> ConnectFiles(const std::string& folder,
                                                                  const StoreGroupOptions& options);

}  // namespace cairn
