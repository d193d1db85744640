#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/memory_drains.h"
#include "api/memory_ranks.h"
#include "api/memory_slots.h"
#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "engine/engine.h"
#include "engine/ledger.h"
#include "store/list.h"
#include "store/root.h"

namespace cairn {

/// The root in memory of one Checkpointer (Options::memory_root). It has a root, a ledger and an engine of its own, so
/// that nothing of it waits for the disk. A save goes there first, and is kept once it is committed there. Then it is
/// drained, see MemoryDrains.
///
///  - Retention keeps the newest in memory, and those that are drained or wait. So a slot more than saves in flight is
///    in use for each of these two, and no more.
///  - Of several ranks, which are on one node, all have the same folder, and each its shards' slots.
///  - The disk's ledger has admitted every save, and counts it as in flight until it is durable or left out. So lines,
///    steps and parents are decided in one place. A kept commit waits until its line is recorded on the disk.
class MemoryRoot {
 public:
  /// Of the disk, and what both share. Pointers outlive it.
  struct Parts {
    /// Resolved.
    Options options;
    Root* root = nullptr;
    /// The root's id.
    std::string id;
    /// On other ranks than 0.
    MemoryOfRank0 of_rank0;
    /// Null on other ranks.
    Ledger* ledger = nullptr;
    Engine* engine = nullptr;
    BufferPool* pool = nullptr;
    WorkerPool* workers = nullptr;
    Trace* trace = nullptr;
    Metrics* metrics = nullptr;
    /// Those that are set up.
    std::vector<std::shared_ptr<Device>> devices;
    std::shared_ptr<Group> group;
    IoQueueFactory queue;
  };
  /// Null if what lies there is another root's, which an event says. What is of lines that the disk's root has not
  /// begun is moved aside. Errors as for MakeMemoryFolder and Root::Open.
  [[nodiscard]] static Result<std::unique_ptr<MemoryRoot>> Open(Parts parts);
  /// Once both engines may call this, on all ranks: what an earlier run has left here, and the disk does not have, is
  /// drained, as if it had been kept now. An event says why not, if its files are damaged, or of another number of
  /// ranks.
  void DrainFound();
  /// What that will be, if it is of as many ranks; else empty.
  [[nodiscard]] std::string found_attempt() const;
  /// MemoryDrains::Stop comes before, and both engines have stopped.
  ~MemoryRoot();
  MemoryRoot(const MemoryRoot&) = delete;
  MemoryRoot& operator=(const MemoryRoot&) = delete;

  [[nodiscard]] Engine& engine() const { return *engine_; }
  [[nodiscard]] MemoryDrains& drains() { return drains_; }
  [[nodiscard]] Root& root() const { return *root_; }
  /// For reads.
  [[nodiscard]] MemoryPlace place() const { return {.path = root_->path(), .root = disk_.id}; }
  /// Saves are kept. No more after a failure of the memory, or where it has no room.
  [[nodiscard]] bool in_use() const { return !off_; }

  /// Before a save: whether it is to be submitted here. Makes the slots, or others. Of several ranks all have the first
  /// ones, or none; an error if that is not known in time, or if a later save finds no room for other ones: whose
  /// failure ends keeping on all. One call at a time.
  [[nodiscard]] Result<bool> MakeRoom(const SlotNeed& need, Deadline deadline) CAIRN_EXCLUDES(slots_mutex_);
  /// Instead of that, if this rank's save is refused before all are known to have room: then no rank keeps that save.
  void RefuseRoom(const Status& why);
  /// Of several ranks: all keep their saves, so that a save that one of them gives up is to be said here.
  [[nodiscard]] bool shared() const { return agreed_ && !off_; }
  /// No save is kept any more, and every rank knows it.
  [[nodiscard]] bool gone() const { return off_ && !agreed_; }
  /// On rank 0 of several, before a save that all could keep is submitted to the disk's engine: the other ranks', which
  /// are submitted here, follow it there.
  void GiveToDisk(std::uint64_t step) { engine_->AnnounceToDisk(step); }
  /// Takes a save for which there is room, and which the disk's ledger has admitted.
  [[nodiscard]] Status Accept(SavePlan& plan, Deadline deadline);
  /// Unless it is submitted.
  void Withdraw(const SavePlan& plan) { ledger_.Withdraw(plan); }
  /// `given_up` as in Engine::Submit.
  void Submit(const std::shared_ptr<SaveTask>& task, Status given_up = {});
  /// A reader has found a checkpoint there damaged.
  void FoundDamaged(const CheckpointInfo& info) { ledger_.FoundDamaged(info.step, info.attempt); }

  /// As Checkpointer::Remove: what is kept of the step. NotFound if nothing is.
  [[nodiscard]] Status RemoveStep(IoQueue& queue, std::uint64_t step);

  /// What Engine::WaitIdle here, and then that of the drains, wait for, in words; empty if nothing.
  [[nodiscard]] std::string Busy() const;
  /// Engine::AddStats of both engines.
  void AddStats(CheckpointerStats& stats) const;
  /// Once its engine has stopped: says what is only kept. If nothing is, and the disk's engine has stopped too, removes
  /// all of it.
  void Close(bool removes);

 private:
  MemoryRoot(Parts parts, std::unique_ptr<Root> root, std::vector<CheckpointInfo> found,
             std::optional<StoredCheckpoint> left);
  [[nodiscard]] bool IsOfThisWorld(const StoredCheckpoint& stored) const;
  /// Maps its shard of this rank.
  [[nodiscard]] Result<std::unique_ptr<Snapshot>> ReadBack(const StoredCheckpoint& stored);
  /// On rank 0.
  [[nodiscard]] static Result<std::unique_ptr<MemoryRoot>> Lead(Parts parts);
  [[nodiscard]] static Result<std::unique_ptr<MemoryRoot>> Join(Parts parts);
  [[nodiscard]] Status Start();
  [[nodiscard]] bool leads() const { return disk_.group->rank() == 0; }
  [[nodiscard]] bool alone() const { return disk_.group->size() == 1; }
  void BeginRoom();
  [[nodiscard]] Result<bool> AgreeOnRoom(const SlotNeed& need);
  void OnGone(const std::shared_ptr<SaveTask>& task, const Status& outcome, const std::string& attempt);
  void OnMoved(const std::shared_ptr<SaveTask>& task, bool off);
  void TurnOff(const Status& why);
  void Notify(const Event& event) const { disk_.options.on_event(event); }

  const Parts disk_;
  const std::unique_ptr<Root> root_;
  Ledger ledger_;
  // See DrainFound.
  std::optional<StoredCheckpoint> left_;
  std::atomic<bool> off_ = false;
  // Of several ranks: all are known to have room.
  std::atomic<bool> agreed_ = false;
  // Of one caller of MakeRoom or RefuseRoom after the other. The round, none for a rank alone, and what this rank has
  // said in it.
  std::shared_ptr<RoomOfRanks> room_;
  std::uint64_t rounds_ = 0;
  bool said_room_ = false;
  bool refused_room_ = false;
  // Rank 0 has told the others that it is off.
  bool told_off_ = false;
  // Of one caller of MakeRoom after the other: the slot's length for the next save, and that there are no slots any
  // more. Of several ranks, the next saves move to the disk's engine, once rank 0 says so.
  std::uint64_t slot_bytes_ = 0;
  bool gave_up_ = false;

  MemoryDrains drains_;
  // While slots are allocated retention does not begin.
  Mutex slots_mutex_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MemorySlots> slots_;
};

}  // namespace cairn
