#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "cairn/group.h"
#include "cairn/options.h"
#include "engine/save_task.h"

namespace cairn {

class Engine;
class Ledger;

/// What is kept in memory, on its way to the disk. A drain is a save of the same attempt by the disk's engine, which
/// reads the mapped shard, sums it again, and commits only if the sums are those of before.
///
///  - One save is drained at a time. Of those that are kept meanwhile the newest waits; it begins when that has ended,
///    and it is due (Options::disk_every) or somebody waits for it. One that it overtakes is left out of the disk,
///    which its waiters hear at once.
///  - None begins while the disk hangs on any rank. So of those that a hung disk does not take, one fails, and the
///    newest waits. Rank 0 hears that another rank's disk answers by gone/ of the drain that has failed, and the others
///    that all do by answers/.
///  - A rank alone tries again what it could not drain, unless it is overtaken: a disk that had hung gets it once it
///    answers, any other one when somebody waits for the disk.
///  - Retention in memory spares those that are drained or wait (they are pinned in its ledger).
///  - Of several ranks, rank 0 decides what is drained; the others hear it by the attempt's id (attempt/, see
///    Coordination), or that it is left out, and why.
class MemoryDrains {
 public:
  /// Pointers outlive it.
  struct Parts {
    std::uint64_t disk_every = 1;
    std::chrono::nanoseconds group_timeout{};
    std::shared_ptr<Group> group;
    /// The disk's. The ledger is null on other ranks than 0.
    Engine* engine = nullptr;
    Ledger* ledger = nullptr;
    Ledger* memory_ledger = nullptr;
    /// Lets retention look at what is in memory. Called with a lock.
    std::function<void()> retire;
    /// On other ranks than 0, called with a lock.
    std::function<bool()> rank0_lives;
  };
  explicit MemoryDrains(Parts parts);
  /// Stop comes before, and both engines have stopped.
  ~MemoryDrains() = default;
  MemoryDrains(const MemoryDrains&) = delete;
  MemoryDrains& operator=(const MemoryDrains&) = delete;

  /// It is submitted in memory. One of the next two follows.
  void Expect(const std::shared_ptr<SaveTask>& task) CAIRN_EXCLUDES(mutex_);
  /// It is not kept: it has failed, or goes straight to the disk.
  void Forget(const std::shared_ptr<SaveTask>& task) CAIRN_EXCLUDES(mutex_);
  /// It is kept: the disk gets it, unless a newer one is.
  void Keep(const std::shared_ptr<SaveTask>& task, const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  /// From the disk's engine: see EngineParts.
  void OnGone(const std::shared_ptr<SaveTask>& task, const Status& outcome) CAIRN_EXCLUDES(mutex_);
  void OnAnswers() CAIRN_EXCLUDES(mutex_);

  /// Before its step is saved anew, or in another line, or removed: the `reason`. The disk need not get what is kept of
  /// it, if that is the newest. Waits until it is not in flight.
  void GiveUp(std::uint64_t step, std::string_view reason, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// On rank 0, to the other ranks, if there are any: this save, which is kept, is not drained.
  void AnnounceLeftOut(std::uint64_t step, const std::string& attempt, const Status& why) const;

  /// Waits until each save has ended: is durable, left out or failed. The newest is due, also if it has failed and that
  /// was heard, or was the first time, unless the deadline has passed already. False at the deadline, or if one waits
  /// for a disk that hangs.
  [[nodiscard]] bool WaitIdle(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// After WaitIdle: why the disk does not have the newest, if it has failed to take it; whoever has heard it.
  [[nodiscard]] Status Failure() const CAIRN_EXCLUDES(mutex_);
  /// Why none begins: the disk hangs, here or on another rank. Else Ok.
  [[nodiscard]] Status DiskHangs() const CAIRN_EXCLUDES(mutex_);
  /// What WaitIdle waits for, once all that are expected are kept, in words; empty if nothing.
  [[nodiscard]] std::string Busy() const CAIRN_EXCLUDES(mutex_);
  /// Engine::AddStats of the disk's engine, whose drains are no saves of their own.
  void AddStats(CheckpointerStats& stats) const CAIRN_EXCLUDES(mutex_);
  /// No further save is drained: the one that waits ends, as only kept.
  void Stop() CAIRN_EXCLUDES(mutex_);

 private:
  [[nodiscard]] bool leads() const { return parts_.group->rank() == 0; }
  [[nodiscard]] bool alone() const { return parts_.group->size() == 1; }
  /// On rank 0.
  void Queue(const std::shared_ptr<SaveTask>& task) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] bool IsDue(const SaveTask& task) const CAIRN_REQUIRES(mutex_);
  /// Whoever waits for the disk makes it due. Not one whose second failure nobody has heard yet.
  [[nodiscard]] bool IsForWaiters(const SaveTask& task) const CAIRN_REQUIRES(mutex_);
  /// Whether it waits again after that.
  [[nodiscard]] bool IsTriedAgain(const SaveTask& drain, const Status& outcome) const CAIRN_REQUIRES(mutex_);
  /// The last failure of that attempt; null if there is none.
  struct Failed {
    std::shared_ptr<SaveTask> drain;
    Status why;
  };
  [[nodiscard]] const Failed* FailureOf(const SaveTask& task) const CAIRN_REQUIRES(mutex_);
  /// Nobody need hear of its failures any more.
  void Forgive(const SaveTask& task) CAIRN_REQUIRES(mutex_);
  /// The drain of the one that waits, if there is none, and it is due or `wanted`.
  void Begin(bool wanted = false) CAIRN_REQUIRES(mutex_);
  void Drain(const std::shared_ptr<SaveTask>& task, const std::string& attempt) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Status Hangs() const CAIRN_REQUIRES(mutex_);
  /// On rank 0, after a drain that failed because the disk hangs on some rank: waits until nothing of it is in flight
  /// on any rank, and their disks answer.
  void AwaitGone(const std::string& attempt) CAIRN_REQUIRES(mutex_);
  /// On other ranks than 0: until rank 0 knows that.
  void AwaitAnswers(const std::string& attempt) CAIRN_REQUIRES(mutex_);
  void OnAllGone(const std::string& attempt) CAIRN_EXCLUDES(mutex_);
  /// On other ranks: of the drains that have failed, unless this rank's disk hangs.
  void TellGone() CAIRN_REQUIRES(mutex_);
  /// Ends a kept save that the disk does not get, on rank 0 for all ranks.
  void LeaveOut(const std::shared_ptr<SaveTask>& task, Status why) CAIRN_REQUIRES(mutex_);
  /// Retention may take it.
  void Unpin(const SavePlan& plan);

  /// On other ranks than 0: what rank 0 does with what is kept.
  void Await(const std::shared_ptr<SaveTask>& task, const std::string& attempt) CAIRN_REQUIRES(mutex_);
  void OnDecided(const std::string& attempt, const Result<std::string>& heard) CAIRN_EXCLUDES(mutex_);
  /// While anything is undecided: looks each group_timeout whether rank 0 is alive.
  void WatchRank0() CAIRN_REQUIRES(mutex_);
  void OnWatched(const Status& ended) CAIRN_EXCLUDES(mutex_);

  const Parts parts_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  // Submitted in memory, and not yet in one of the two below, left out or failed.
  std::vector<std::shared_ptr<SaveTask>> expected_ CAIRN_GUARDED_BY(mutex_);
  // On other ranks than 0: what is kept, by its attempt, until rank 0 drains it or leaves it out.
  std::map<std::string, std::shared_ptr<SaveTask>> undecided_ CAIRN_GUARDED_BY(mutex_);
  bool watching_ CAIRN_GUARDED_BY(mutex_) = false;
  std::uint64_t watches_ CAIRN_GUARDED_BY(mutex_) = 0;
  // The attempt of the last drain that nobody wants any more.
  std::string given_up_ CAIRN_GUARDED_BY(mutex_);
  // The disk's save of a kept one, until nothing of it is in flight any more; on other ranks than 0 the last one.
  std::shared_ptr<SaveTask> drain_ CAIRN_GUARDED_BY(mutex_);
  // The kept save that is drained next.
  std::shared_ptr<SaveTask> waiting_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t drains_ CAIRN_GUARDED_BY(mutex_) = 0;
  // Of the one that waits or is drained again.
  std::vector<Failed> failed_ CAIRN_GUARDED_BY(mutex_);
  // Why the last one has failed, if the disk of some rank hangs, until that answers.
  Status hangs_ CAIRN_GUARDED_BY(mutex_);
  // On other ranks than 0: what TellGone is to say.
  std::vector<std::string> gone_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
