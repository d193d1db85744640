#pragma once

#include <optional>
#include <string>

#include "cairn/status.h"
#include "io/io_task.h"
#include "io/path_at.h"
#include "store/list.h"
#include "store/locks.h"
#include "store/remove.h"

namespace cairn {

/// A checkpoint whose bytes stay as they are while a mirror copies them. Its files have second names in the mirror's
/// folder, so the root's writer retires, replaces and recycles as if nobody read them: it never writes into a file of
/// several names.
struct HeldCheckpoint {
  /// As it was listed; but info.path is the folder in which its files are held.
  StoredCheckpoint checkpoint;
  /// The manifest, byte for byte.
  std::string manifest;
  /// It has its index.
  bool index = false;
  /// Set if its files have no second names: it is not removed or replaced while this lives. `not_linked` says why they
  /// could not be linked.
  std::optional<ReadLock> lock;
  Status not_linked;
};

/// Gives the checkpoint's files second names in `holds`/step-N. NotFound if it was removed or replaced since it was
/// listed; Corrupt if a shard is missing. Afterwards, or after an error, DropHolds.
IoTask<Status> HoldCheckpoint(PathAt root, PathAt holds, StoredCheckpoint wanted, HeldCheckpoint& held);
/// Removes all second names in a mirror's folder. Best effort: `left` says what remains, and why.
IoTask<Status> DropHolds(PathAt holds, Leftovers& left);
/// The same for the folders of mirrors that were killed: nobody has their locks. For the root's writer.
IoTask<Status> DropStaleHolds(PathAt root, Leftovers& left);

}  // namespace cairn
