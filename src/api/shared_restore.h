#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cairn/group.h"
#include "restore/reader.h"

namespace cairn {

/// A restore that all ranks of a group make together, as one rank calls it. Everything outlives the call.
struct SharedRestore {
  const RestoreParts& parts;
  const std::string& root;  ///< As this rank sees it.
  const Which& which;       ///< Rank 0's counts; but a folder is where each rank's own has it.
  const State& state;
  const RestoreOptions& options;
  Group& group;
  std::chrono::nanoseconds group_deadline{};
  /// How many such restores this rank has made before: what tells their words apart.
  std::uint64_t number = 0;
  /// Not ok: this rank can read nothing, and the restore ends with that on all of them.
  Status readable;
};

/// Ends on every rank with the same attempt restored, or with an error. Blocking.
///
/// Round by round:
///  1. Rank 0 chooses by manifests, less what was found damaged so far, and announces the attempt, or why there is none
///     (choice/). A manifest that does not verify is announced as passed over, and the round is over.
///  2. Each rank locks that very attempt and reads its own part, verified; NotFound where another one, or none, is in
///     its place. The others tell rank 0 how that went (read/).
///  3. Rank 0 waits for them until the group's deadline, and announces what that comes to (verdict/): Ok, restored on
///     all; Corrupt, passed over by all; NotFound, chosen anew; any other error ends it. Of several the last kind
///     counts first, then NotFound, then Corrupt, which may come of its being removed; of one kind the lowest rank's.
/// Nothing counts as restored before the verdict. Another rank's error begins with "rank R: ".
[[nodiscard]] Result<Restored> RestoreTogether(const SharedRestore& call);

}  // namespace cairn
