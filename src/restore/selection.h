#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/checkpointer.h"

namespace cairn {

// For callers that must know what is in a checkpoint before they read it.

/// What one rank wants to know of a checkpoint.
struct InspectPart {
  /// All tensors of this rank's own shard, and its values; none where it has no shard.
  std::optional<std::uint64_t> rank;
  /// And tensors of these names, each as at least one shard holds it; left out where none does.
  std::vector<std::string> names;
};

/// A checkpoint that was chosen before it is read.
struct Chosen {
  CheckpointDetails details;  ///< Only `info`, unless it was inspected.
  /// Keeps it from removal and replacement, by any process, until the last copy of this is gone.
  std::shared_ptr<const void> hold;
};

/// What one rank reads of the checkpoint that was chosen.
struct ReadPlan {
  State state;
  RestoreOptions options;
  /// See RestoreParts.
  bool own_shard = true;
  bool values = true;
  /// No tensor is read: every byte of the checkpoint is verified instead.
  bool verify = false;
  /// Called once every rank has planned, before the first byte of a tensor is written. May be empty.
  std::function<Status()> begin = nullptr;
  /// Called once all is read, before this rank says so. May be empty.
  std::function<Status()> finish = nullptr;
};

/// What one rank does in a restore. All functions are called on the caller's thread.
struct RestoreCall {
  /// Called for each checkpoint that is chosen, also for one again; it stays in place until it has been read. An error
  /// is this rank's result, as if its files had given it.
  std::function<Result<ReadPlan>(const CheckpointInfo& chosen)> plan;
  /// See RestoreOptions.
  bool resume = true;
  /// This rank restores without the others of its group.
  bool alone = false;
  /// If it is not ok, the restore ends with it on all ranks.
  Status ready = {};
  /// Asked several times a second while this rank waits for others. False ends the restore with Cancelled. May be
  /// empty.
  std::function<bool()> goes_on = nullptr;
};

}  // namespace cairn
