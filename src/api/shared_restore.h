#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "cairn/group.h"
#include "restore/reader.h"
#include "restore/selection.h"

namespace cairn {

/// One rank's arguments of a restore that all ranks of a group make together. Everything outlives the call.
struct SharedRestore {
  const RestoreParts& parts;
  const std::string& root;   ///< As this rank sees it.
  const Selector& selector;  ///< The same on all ranks, but for a folder's path.
  const RestoreCall& call;
  Group& group;
  int rank;  ///< Whose part is read: also of a group of one.
  std::chrono::nanoseconds group_timeout{};
  /// The number of this rank's next round, counted over all its restores: it tells messages apart.
  std::atomic<std::uint64_t>& next_round;
  /// If it is not ok, this rank cannot read, and the restore ends with this status on all ranks.
  Status readable;
};

/// Every rank restores the same attempt, or every rank fails. Blocking. A process alone is a group of one, which sends
/// no messages.
///
/// It goes in rounds:
///  1. Rank 0 chooses by manifests, without those that were found damaged so far, holds the checkpoint in place, and
///     announces the attempt, or why there is none (choice/).
///  2. Each rank finds exactly this attempt, holds it, and plans what it reads; NotFound if another attempt, or none,
///  is
///     in its place. The other ranks send their result to rank 0 (planned/). Rank 0 waits for them until group_timeout,
///     and announces the verdict (begin/). No tensor is written before.
///  3. Each rank reads its own part, and verifies it. Results and verdict as before (read/, verdict/).
/// The verdict of 2 and 3. Ok: go on. Corrupt: with fallback passed over by all, otherwise the end. NotFound: rank 0
/// chooses again, with growing pauses: it is gone, or a rank does not see yet what rank 0 finds again. That rank looks
/// for it until group_timeout (see LateName). Any other error ends the restore. If results differ, any other error
/// comes first, then NotFound, then Corrupt (a removal can look like damage); among equals, the lowest rank's. Why
/// there is no choice, and a manifest that does not verify, are results of all ranks in 2. Nothing counts as restored
/// before the last verdict. Another rank's error begins with "rank R: ".
///
/// A call that some ranks make alone ends at their deadlines and disturbs no later one. A rank that has waited for a
/// choice in vain says so in planned/: when rank 0 comes to that round, all ranks go on with the next one. So does a
/// rank that comes to a round at which rank 0 has waited for it in vain.
[[nodiscard]] Result<Restored> RestoreTogether(const SharedRestore& shared);

}  // namespace cairn
