#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cairn/group.h"
#include "restore/reader.h"

namespace cairn {

/// One rank's arguments of a restore that all ranks of a group make together. Everything outlives the call.
struct SharedRestore {
  const RestoreParts& parts;
  const std::string& root;   ///< As this rank sees it.
  const Selector& selector;  ///< Rank 0's counts, except a folder: each rank uses its own path to it.
  const State& state;
  const RestoreOptions& options;
  Group& group;
  std::chrono::nanoseconds group_timeout{};
  /// How many such restores this rank has made before. It tells the messages of one restore from those of another.
  std::uint64_t number = 0;
  /// If it is not ok, this rank cannot read, and the restore ends with this status on all ranks.
  Status readable;
};

/// Every rank restores the same attempt, or every rank fails. Blocking.
///
/// It goes in rounds:
///  1. Rank 0 chooses by manifests, without those that were found damaged so far, and announces the attempt, or why
///     there is none (choice/). If a manifest does not verify, rank 0 announces that it is passed over, and the round
///     ends.
///  2. Each rank locks exactly this attempt, reads its own part, and verifies it; NotFound if another attempt, or none,
///     is in its place. The other ranks send their result to rank 0 (read/).
///  3. Rank 0 waits for them until group_timeout, and announces the verdict (verdict/). Ok: restored on all.
///     Corrupt: passed over by all. NotFound: rank 0 chooses again: what it finds again, a rank does not see yet. That
///     rank looks for it until group_timeout (see LateName), while rank 0 paces the rounds. Any other error ends the
///     restore. If results
///     differ, any other error comes first, then NotFound, then Corrupt (a removal can look like damage); among equals,
///     the lowest rank's.
/// Nothing counts as restored before the verdict. Another rank's error begins with "rank R: ".
[[nodiscard]] Result<Restored> RestoreTogether(const SharedRestore& call);

}  // namespace cairn
