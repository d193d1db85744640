#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "device/device.h"
#include "engine/inbox.h"
#include "engine/replicas.h"
#include "engine/snapshot.h"
#include "format/manifest.h"

namespace cairn {

struct KeptFile;

/// A save's place in the line of checkpoints, fixed when it is accepted. The ledger sets line, `admitted` and
/// `replace`, so only on the coordinator.
struct SavePlan {
  std::uint64_t step = 0;
  /// The attempt's id, if the call of Save has chosen it: it is the same in memory and on the disk. Empty: rank 0
  /// chooses one.
  std::string attempt;
  /// The number of this rank's call of Save.
  std::uint64_t sequence = 0;
  std::uint64_t line = 0;
  /// What this rank has restored. On the coordinator: a save with a parent is of a line that this process began.
  std::optional<ManifestParent> parent;
  /// By the ledger; false for a save that was given up before.
  bool admitted = false;
  /// Replaces a checkpoint of this step, from this or an older line.
  bool replace = false;
  /// What an earlier run has kept in memory.
  bool found = false;
  /// The disk's save of what is kept in memory as the same attempt, on all ranks.
  bool drain = false;
  /// In memory: the length of its slot, in whole blocks, which its shard fills.
  std::uint64_t slot_bytes = 0;
  /// Committed pinned.
  bool pin = false;
  /// How long it may wait for its release; zero: it needs none.
  std::chrono::nanoseconds hold{0};
  /// Null if there are none.
  std::shared_ptr<const ReplicatedValues> replicated;
};

/// The events that a save holds of one device with streams, from the call of Save until it is captured.
struct DeviceEvents {
  Device* device = nullptr;
  /// Recorded on the caller's streams during the call.
  std::vector<EventId> streams;
  /// By lane; the engine records them after the last copy that reads the caller's tensors there.
  std::vector<EventId> lanes;
  /// By lane: whether its event has been recorded. Final once every such copy is enqueued.
  std::vector<bool> recorded;

  void ReleaseAll() const {
    for (const EventId event : streams) device->ReleaseEvent(event);
    for (const EventId event : lanes) device->ReleaseEvent(event);
  }
};

/// A save, shared by callers, who wait on it, and the engine, which advances it. Safe from any thread.
class SaveTask {
 public:
  using Clock = Deadline::Clock;

  /// `snapshot` is null for a save that was given up before it began. Cancel wakes `engine`.
  SaveTask(SavePlan plan, std::unique_ptr<Snapshot> snapshot, std::vector<DeviceEvents> events, Clock::time_point begun,
           std::shared_ptr<Inbox> engine);
  /// The save must have ended.
  ~SaveTask();
  SaveTask(const SaveTask&) = delete;
  SaveTask& operator=(const SaveTask&) = delete;

  /// Before it is submitted: it is the disk's save of `kept`, which is kept in memory and ends with it. Whoever hears
  /// of the failure of that one has heard of this one's.
  void Drain(std::shared_ptr<SaveTask> kept) { kept_save_ = std::move(kept); }

  /// Calls it once, on the caller's thread, when somebody wants it before it has ended. If that is so already, it is
  /// not called.
  void OnWanted(std::function<void()> call) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool wanted() const CAIRN_EXCLUDES(mutex_);

  // Constant from then on.
  [[nodiscard]] bool drains() const { return kept_save_ != nullptr; }
  [[nodiscard]] const SavePlan& plan() const { return plan_; }
  [[nodiscard]] Clock::time_point begun() const { return begun_; }

  // For callers. In a forked child: FailedPrecondition, false and empty stats.
  Status WaitCaptured(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Until it is kept; without a memory root, until it is durable.
  Status WaitKept(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  Status WaitDurable(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Somebody waits until it has ended: if it is kept, the disk should get it though it is not due. See OnWanted.
  void Want() CAIRN_EXCLUDES(mutex_);
  /// Waits until the engine does not read the tensors any more. False at the deadline. A failure stays unheard.
  [[nodiscard]] bool WaitTensorsFree(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// The same, until the save has ended; and until it is kept, or has ended.
  [[nodiscard]] bool WaitEnded(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool WaitKeptOrEnded(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Orders `stream` after the capture. Waits on the host until every copy is enqueued (or captured, if ordering the
  /// stream is not enough). Adds the wait to the stall. Ok for a save that has ended; so a save that has lost another
  /// GPU than the stream's is waited for until it ends.
  ///
  /// Calls `on_disk`, if there is one, without a lock and at most once, when calls of Fence have waited kLongFence in
  /// all, and its copies wait for buffers that hold what the disk has not written yet.
  Status Fence(Stream stream, Deadline deadline, const std::function<void()>& on_disk = {}) CAIRN_EXCLUDES(mutex_);
  static constexpr std::chrono::milliseconds kLongFence{500};
  /// A fence has had to wait for it: nothing else may hold its copies back.
  [[nodiscard]] bool fence_waits() const { return fence_waits_; }
  /// SaveHandle::Cancel with the caller's reason, which becomes the status of the save.
  bool RequestCancel(Status why) CAIRN_EXCLUDES(mutex_);
  /// Lets a held save commit. Does not wait. It has no effect on other saves.
  void Release() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Status status() const CAIRN_EXCLUDES(mutex_);
  /// The same, for no caller: a failure stays unheard.
  [[nodiscard]] Status outcome() const CAIRN_EXCLUDES(mutex_);
  /// Some caller has received its failure.
  [[nodiscard]] bool heard() const { return heard_ || (kept_save_ != nullptr && kept_save_->heard()); }
  void MarkHeard() const { heard_ = true; }
  [[nodiscard]] SaveStats stats() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool ended() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool captured() const CAIRN_EXCLUDES(mutex_);
  /// The kept file that it writes or links, once its data is written; null if it has none. Only what is constant of it
  /// may be read.
  [[nodiscard]] std::shared_ptr<const KeptFile> kept() const CAIRN_EXCLUDES(mutex_);
  /// Another engine has it now.
  void MoveTo(std::shared_ptr<Inbox> engine) CAIRN_EXCLUDES(mutex_);
  /// The duration of Save, and how much of it was waiting for a slot.
  void SetCallTimes(std::chrono::nanoseconds call, std::chrono::nanoseconds stall) CAIRN_EXCLUDES(mutex_);

  // For the engine's thread. Phases only advance; each call records its time.
  /// Valid until DropSnapshot.
  [[nodiscard]] Snapshot& snapshot() { return *snapshot_; }
  [[nodiscard]] std::vector<DeviceEvents>& events() { return events_; }
  void MarkCapturing() CAIRN_EXCLUDES(mutex_);
  /// Whether the pool has no buffer for its next chunk.
  void MarkShortOfBuffers(bool is) CAIRN_EXCLUDES(mutex_);
  void MarkKept(std::shared_ptr<const KeptFile> kept) CAIRN_EXCLUDES(mutex_);
  /// GPUs computed the checksums of that many bytes more.
  void AddGpuChecksums(std::uint64_t bytes) CAIRN_EXCLUDES(mutex_);
  void MarkEnqueued(bool staged) CAIRN_EXCLUDES(mutex_);
  /// Releases the events.
  void MarkCaptured() CAIRN_EXCLUDES(mutex_);
  void MarkWritten(std::uint64_t bytes_written, bool direct, bool recycled) CAIRN_EXCLUDES(mutex_);
  /// False if the save was cancelled, or has ended, first: it must not commit then.
  [[nodiscard]] bool MarkCommitting() CAIRN_EXCLUDES(mutex_);
  /// Committed in memory. The end is up to the disk.
  void MarkInMemory() CAIRN_EXCLUDES(mutex_);
  /// The end: durable if `status` is ok. Only the first call has an effect.
  void Finish(Status status) CAIRN_EXCLUDES(mutex_);
  /// The end of a save that the disk does not answer while it is given up: unknown if it is being committed, else
  /// failed.
  Status FinishUnanswered() CAIRN_EXCLUDES(mutex_);
  /// The save is failing and no longer reads the tensors, but has not ended (other ranks may still be notified). Ends
  /// all waits for the capture. Only the first call has an effect.
  void ReleaseTensors(const Status& why) CAIRN_EXCLUDES(mutex_);
  /// It must not commit until it is released.
  [[nodiscard]] bool held() const CAIRN_EXCLUDES(mutex_);
  /// The reason, if the save was cancelled.
  [[nodiscard]] std::optional<Status> cancelled() const CAIRN_EXCLUDES(mutex_);
  /// Has come to it now: again, if it has before, but to the first chunk only once. The marks above do so too.
  void Reach(SavePoint point);
  /// Adds the phases of a durable save.
  void AddPhases(Metrics& metrics) const;
  /// Frees the description of the tensors.
  void DropSnapshot() { snapshot_.reset(); }
  /// For the save of it to the disk.
  [[nodiscard]] std::unique_ptr<Snapshot> TakeSnapshot() { return std::move(snapshot_); }

 private:
  /// Returns false at the deadline.
  bool WaitUntil(bool (SaveTask::*over)() const, Deadline deadline) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Status Late(const char* what) const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] std::chrono::nanoseconds SinceBegun() const { return Clock::now() - begun_; }
  void Advance(SavePhase phase) CAIRN_REQUIRES(mutex_);
  void FinishLocked(Status status) CAIRN_REQUIRES(mutex_);
  /// Ends the kept save, if this is the disk's save of one.
  void FinishKept() CAIRN_EXCLUDES(mutex_);
  void ReleaseEvents() CAIRN_REQUIRES(mutex_);
  // Waits until the tensors are free: true; or, unless the host has to wait for that, until every copy is enqueued:
  // false, and the events remain until `fencing_` is counted down.
  [[nodiscard]] Result<bool> AwaitFence(bool host_waits, Deadline deadline, const std::function<void()>& on_disk)
      CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool HostWaits(Stream stream) const;
  [[nodiscard]] bool HeldUp(bool host_waits) const CAIRN_REQUIRES(mutex_) {
    return !TensorsFree() && (host_waits || !enqueued_);
  }
  // For buffers that hold what the disk has not written yet.
  [[nodiscard]] bool waits_for_disk() const CAIRN_REQUIRES(mutex_) { return short_of_buffers_ && !enqueued_; }
  [[nodiscard]] Status HoldStream(Stream stream) const;
  [[nodiscard]] bool LostAnotherGpu(Stream stream) const;
  [[nodiscard]] bool Ended() const CAIRN_REQUIRES(mutex_) { return ended_; }
  [[nodiscard]] bool KeptOrEnded() const CAIRN_REQUIRES(mutex_) { return ended_ || stats_.phase == SavePhase::kKept; }
  /// The caller may overwrite the tensors.
  [[nodiscard]] bool TensorsFree() const CAIRN_REQUIRES(mutex_) {
    return stats_.phase >= SavePhase::kCaptured || tensors_released_.has_value();
  }

  /// Returns the failure, or Ok, to a caller.
  [[nodiscard]] Status Told(Status status) const {
    if (!status.ok()) MarkHeard();
    return status;
  }

  /// FailedPrecondition in a forked child, where the lock and the state under it are unreliable.
  [[nodiscard]] Status CheckProcess() const;

  const pid_t process_;
  const SavePlan plan_;
  const Clock::time_point begun_;
  const bool reads_cpu_;
  // See Drain.
  std::shared_ptr<SaveTask> kept_save_;
  mutable std::atomic<bool> heard_ = false;
  std::atomic<bool> fence_waits_ = false;
  // Only the engine's, after the call of Save.
  std::unique_ptr<Snapshot> snapshot_;
  // Constant; the events are released under mutex_.
  std::vector<DeviceEvents> events_;
  // Only the engine's. The clock's epoch: not reached.
  std::array<Clock::time_point, kSavePhases.size()> points_{};

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Inbox> engine_ CAIRN_GUARDED_BY(mutex_);
  SaveStats stats_ CAIRN_GUARDED_BY(mutex_);
  std::shared_ptr<const KeptFile> kept_ CAIRN_GUARDED_BY(mutex_);
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  Status status_ CAIRN_GUARDED_BY(mutex_);
  bool short_of_buffers_ CAIRN_GUARDED_BY(mutex_) = false;
  bool enqueued_ CAIRN_GUARDED_BY(mutex_) = false;
  std::chrono::nanoseconds fence_wait_ CAIRN_GUARDED_BY(mutex_){};
  bool events_held_ CAIRN_GUARDED_BY(mutex_) = true;
  // Calls of Fence that hand events to the driver. They do so without the mutex, since the driver may block.
  int fencing_ CAIRN_GUARDED_BY(mutex_) = 0;
  // The save no longer needs its events.
  bool events_unused_ CAIRN_GUARDED_BY(mutex_) = false;
  bool held_ CAIRN_GUARDED_BY(mutex_) = false;
  bool wanted_ CAIRN_GUARDED_BY(mutex_) = false;
  std::function<void()> on_wanted_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Status> cancelled_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Status> tensors_released_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
