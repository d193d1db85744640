#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "engine/save_task.h"

namespace cairn {

/// The coordinator's record of the checkpoints under the root, the saves in flight, and the line of training that they
/// belong to. Decides which steps may be saved, in which line, and what retention removes. Safe from any thread.
class Ledger {
 public:
  /// Seconds since 1970, by step.
  using Times = std::map<std::uint64_t, double>;

  /// Continues the newest line of `committed` in `line`, the root's counter that this opening has begun, or in the next
  /// one above all of `committed`. `committed_at`: when each of them was, as far as it is known.
  Ledger(std::vector<CheckpointInfo> committed, std::uint64_t keep_last, std::uint64_t keep_every,
         std::uint64_t line = 0, Times committed_at = {});

  /// Accepts a save: AlreadyExists, or FailedPrecondition for a step below the newest of this line. The step counts as
  /// in flight until Committed or Withdraw. If this step is being removed, waits for that; DeadlineExceeded, and not
  /// accepted, if it takes too long.
  Result<SavePlan> Admit(std::uint64_t step, IfExists if_exists, Deadline deadline = Deadline::Infinite())
      CAIRN_EXCLUDES(mutex_);
  /// Another place has checkpoints of this root as well. From now on Admit gives the same line and step only once, and
  /// begins a line instead. So both places have one order.
  void ShareOrder() CAIRN_EXCLUDES(mutex_);
  /// Accepts what the ledger of the disk has admitted, for a root in memory. Waits as Admit does.
  Status Accept(const SavePlan& plan, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Takes what an earlier run has kept in memory, and which is newer than all that is committed, as a save in flight:
  /// its step, line and attempt. Sets the rest of the plan. Before the first Admit.
  void Resume(SavePlan& plan) CAIRN_EXCLUDES(mutex_);
  /// Whether a save of the step is in flight that belongs to a line which was left since.
  [[nodiscard]] bool IsAbandoned(std::uint64_t step) const CAIRN_EXCLUDES(mutex_);
  void Withdraw(const SavePlan& plan) CAIRN_EXCLUDES(mutex_);
  /// Accepts again what was withdrawn, and is kept in memory. False if it need not or may not be saved: a newer one is
  /// committed, or its step is in flight or being removed.
  [[nodiscard]] bool Readmit(SavePlan& plan) CAIRN_EXCLUDES(mutex_);
  /// Withdraws a save that may still be on the disk: it no longer counts, and saving its step again replaces it. Relist
  /// must follow. Unless it is `decided`, the disk may still commit it: no listing tells before DecideUnknown.
  void WithdrawUnknown(const SavePlan& plan, bool decided = true) CAIRN_EXCLUDES(mutex_);
  void DecideUnknown(const SavePlan& plan) CAIRN_EXCLUDES(mutex_);
  /// Call it before the root is listed for Relist, which covers the saves of unknown outcome until now. False if there
  /// are none.
  [[nodiscard]] bool BeginRelist() CAIRN_EXCLUDES(mutex_);
  /// Takes a listing of the root after saves of unknown outcome. For each: the checkpoint that it was to replace may
  /// still be there, and counts again. Or its checkpoint is there; it is still not known to be durable, does not count,
  /// and is removed once keep_last newer ones are durable. Or there is neither. False if one could not be read: list
  /// the root again.
  bool Relist(const std::vector<CheckpointInfo>& found) CAIRN_EXCLUDES(mutex_);
  /// The save is durable, as this attempt.
  void Committed(const SavePlan& plan, const std::string& attempt, NonFinite nonfinite = NonFinite::kNone,
                 Frozen frozen = Frozen::kNone) CAIRN_EXCLUDES(mutex_);
  /// The caller's tensors now hold this checkpoint. Further saves continue from it in a line that no save was in, above
  /// every line of the root. Its number is the root's only once the counter is: before the first commit (LineRecord).
  void Restored(std::uint64_t step, std::uint64_t line, const std::string& attempt) CAIRN_EXCLUDES(mutex_);

  /// Damaged ones go too, as soon as a newer one is committed.
  void RetireDamaged() CAIRN_EXCLUDES(mutex_);
  /// The steps that retention removes now. Each is returned once until CancelRetirement.
  std::vector<std::uint64_t> Retire() CAIRN_EXCLUDES(mutex_);
  /// Before the caller removes a step. FailedPrecondition during a save or another removal of it.
  Status BeginRemoval(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  void Removed(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  /// A removal did not happen, for example because of a reader: try again next time.
  void CancelRetirement(std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  /// The attempt of a committed step; empty if unknown.
  [[nodiscard]] std::string AttemptOf(std::uint64_t step) const CAIRN_EXCLUDES(mutex_);
  /// The committed steps that are not known to be damaged, newest first.
  [[nodiscard]] std::vector<CheckpointInfo> NewestFirst() const CAIRN_EXCLUDES(mutex_);
  struct Newest {
    std::uint64_t step = 0;
    /// Seconds since 1970; none if unknown.
    std::optional<double> at;
  };
  /// The first of these. None if there is none.
  [[nodiscard]] std::optional<Newest> FindNewest() const CAIRN_EXCLUDES(mutex_);
  /// A read found a committed step damaged: it no longer counts and is not removed.
  void FoundDamaged(std::uint64_t step, const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  /// A committed step is not under its name: it no longer counts, as after WithdrawUnknown. Relist must follow. False
  /// if that is no surprise, because the step is being saved again, removed or published, or `attempt` is not its
  /// newest.
  [[nodiscard]] bool FoundMissing(std::uint64_t step, const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  void SetPinned(std::uint64_t step, bool pinned) CAIRN_EXCLUDES(mutex_);

 private:
  /// Waits for the removal of the step's old checkpoint.
  [[nodiscard]] Status AwaitRemoval(std::uint64_t step, Deadline deadline) CAIRN_REQUIRES(mutex_);
  /// Above every line of the root.
  void BeginLine() CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::optional<std::uint64_t> NewestOfLine() const CAIRN_REQUIRES(mutex_);
  /// This very checkpoint is the newest, and no save in flight is newer.
  [[nodiscard]] bool IsNewest(std::uint64_t step, std::uint64_t line, const std::string& attempt) const
      CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::vector<const CheckpointInfo*> InOrder() const CAIRN_REQUIRES(mutex_);
  /// InOrder() without damaged ones.
  [[nodiscard]] std::vector<const CheckpointInfo*> Counted() const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::vector<std::uint64_t> UnknownBelowKept() const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::vector<std::uint64_t> DamagedBelowNewest() const CAIRN_REQUIRES(mutex_);

  /// A step whose last save may be on the disk but was never acknowledged.
  struct Unknown {
    /// What it was to replace.
    std::optional<CheckpointInfo> before;
    /// Set by Relist.
    std::optional<CheckpointInfo> found;
    /// The disk has answered.
    bool decided = true;
    /// The current listing covers it.
    bool listing = false;
  };

  const std::uint64_t keep_last_;
  const std::uint64_t keep_every_;
  mutable Mutex mutex_;
  CondVar removal_ended_;
  // By step.
  std::map<std::uint64_t, CheckpointInfo> committed_ CAIRN_GUARDED_BY(mutex_);
  // When they were committed.
  Times committed_at_ CAIRN_GUARDED_BY(mutex_);
  struct InFlight {
    std::uint64_t line = 0;
    /// Only after Resume and Readmit.
    std::string attempt = {};
  };
  // By step.
  std::map<std::uint64_t, InFlight> in_flight_ CAIRN_GUARDED_BY(mutex_);
  std::set<std::uint64_t> retiring_ CAIRN_GUARDED_BY(mutex_);
  // By step.
  std::map<std::uint64_t, Unknown> unknown_ CAIRN_GUARDED_BY(mutex_);
  // Saves accepted now are of this one.
  std::uint64_t line_ CAIRN_GUARDED_BY(mutex_) = 0;
  // A save was.
  bool used_ CAIRN_GUARDED_BY(mutex_) = false;
  // See ShareOrder.
  bool shares_order_ CAIRN_GUARDED_BY(mutex_) = false;
  // See RetireDamaged.
  bool retires_damaged_ CAIRN_GUARDED_BY(mutex_) = false;
  // The highest step that was admitted in this line.
  std::optional<std::uint64_t> highest_ CAIRN_GUARDED_BY(mutex_);
  // And those that it continues without a gap: each began with the newest checkpoint. Their steps are saved already.
  std::set<std::uint64_t> continued_ CAIRN_GUARDED_BY(mutex_);
  // No line of the root is above it.
  std::uint64_t newest_line_ CAIRN_GUARDED_BY(mutex_);
  std::optional<ManifestParent> parent_ CAIRN_GUARDED_BY(mutex_);
  // The restored step from which this line began: no step below it is saved.
  std::optional<std::uint64_t> floor_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
