#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "engine/save_task.h"
#include "store/list.h"

namespace cairn {

/// The checkpoints under the root as the coordinator knows them, the saves on their way, and the line of training they
/// belong to: decides which steps may be saved, with which generation, and what retention removes. Safe from any
/// thread.
class Ledger {
 public:
  Ledger(std::vector<CheckpointInfo> committed, std::uint64_t keep_last, std::uint64_t keep_every);

  /// Accepts a save: AlreadyExists, or FailedPrecondition for a step below the newest of this line. The step counts as
  /// on its way until Committed or Withdraw. Where that very step is being removed, waits until it is gone;
  /// DeadlineExceeded, and not accepted, where it is not by then.
  Result<SavePlan> Admit(std::uint64_t step, IfExists if_exists, Deadline deadline = Deadline::Infinite())
      CAIRN_EXCLUDES(mutex_);
  void Withdraw(const SavePlan& plan) CAIRN_EXCLUDES(mutex_);
  /// Withdraws a save that may be on the disk all the same: it counts for nothing, and saving its step again replaces
  /// it. Relist is due.
  void WithdrawUnknown(const SavePlan& plan) CAIRN_EXCLUDES(mutex_);
  /// Saves of unknown outcome so far: those that a list of the root that begins now is about. False where there are
  /// none.
  [[nodiscard]] bool BeginRelist() CAIRN_EXCLUDES(mutex_);
  /// What the root holds after saves whose outcome is unknown. What such a save was to replace is there still, and
  /// counts; or the save's checkpoint is, which is no more durable for that: it counts for nothing, and goes once so
  /// many newer ones as are kept are durable; or neither. What cannot be read tells
  /// nothing: false, the root has to be listed once more.
  bool Relist(const std::vector<CheckpointInfo>& found) CAIRN_EXCLUDES(mutex_);
  /// The save is durable, as this attempt.
  void Committed(const SavePlan& plan, const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  /// The caller's tensors are now those of this checkpoint: saves go on from it.
  void Restored(std::uint64_t step, std::uint64_t generation, const std::string& attempt) CAIRN_EXCLUDES(mutex_);

  /// What retention removes now; each is returned once until KeepAfterAll.
  std::vector<std::uint64_t> Retire() CAIRN_EXCLUDES(mutex_);
  /// The caller is about to remove a step: FailedPrecondition while a save or another removal of it is under way.
  Status BeginRemoval(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  void Removed(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  /// A removal did not happen (somebody reads it): try again next time.
  void KeepAfterAll(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  /// Of a committed step; empty where that is not known.
  [[nodiscard]] std::string AttemptOf(std::uint64_t step) const CAIRN_EXCLUDES(mutex_);
  /// The committed steps that are not known to be damaged, newest first.
  [[nodiscard]] std::vector<CheckpointInfo> NewestFirst() const CAIRN_EXCLUDES(mutex_);
  /// A committed step was found damaged as it was read: it counts for nothing from now on, and is not removed.
  void FoundDamaged(std::uint64_t step, const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  void SetPinned(std::uint64_t step, bool pinned) CAIRN_EXCLUDES(mutex_);

 private:
  [[nodiscard]] std::optional<std::uint64_t> NewestOfLine() const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::vector<const CheckpointInfo*> InOrder() const CAIRN_REQUIRES(mutex_);
  /// Those of them that are not damaged.
  [[nodiscard]] std::vector<const CheckpointInfo*> Counted() const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::vector<std::uint64_t> UnknownBelowKept() const CAIRN_REQUIRES(mutex_);

  /// A step whose last save may be on the disk, and was never acknowledged.
  struct Unknown {
    std::optional<CheckpointInfo> before;  ///< What it was to replace.
    std::optional<CheckpointInfo> found;   ///< By Relist.
    bool listing = false;                  ///< The list that is being made is about it.
  };

  const std::uint64_t keep_last_;
  const std::uint64_t keep_every_;
  mutable Mutex mutex_;
  CondVar removal_ended_;
  std::map<std::uint64_t, CheckpointInfo> committed_ CAIRN_GUARDED_BY(mutex_);  // By step.
  std::map<std::uint64_t, std::uint64_t> on_the_way_ CAIRN_GUARDED_BY(mutex_);  // Step -> generation.
  std::set<std::uint64_t> retiring_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Unknown> unknown_ CAIRN_GUARDED_BY(mutex_);  // By step.
  std::uint64_t generation_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::optional<ManifestParent> parent_ CAIRN_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> floor_ CAIRN_GUARDED_BY(mutex_);  // The restored step, of a line that began there.
};

}  // namespace cairn
