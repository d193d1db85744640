#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "device/device.h"
#include "engine/inbox.h"
#include "engine/replicas.h"
#include "engine/snapshot.h"
#include "format/manifest.h"

namespace cairn {

/// Where a save stands in the line of checkpoints, fixed when it was accepted. Generation, `admitted` and `replace` are
/// the coordinator's alone: its ledger decides.
struct SavePlan {
  std::uint64_t step = 0;
  std::uint64_t sequence = 0;  ///< Number of the call of Save, alike on every rank.
  std::uint64_t generation = 0;
  std::optional<ManifestParent> parent;  ///< What this rank has restored.
  bool admitted = false;                 ///< By the ledger; not so for a save that was given up before.
  bool replace = false;                  ///< The step is there already (of this or an older generation) and gives way.
  std::chrono::nanoseconds hold{0};      ///< How long it may wait for its release; zero: it needs none.
  std::shared_ptr<const ReplicatedValues> alike;  ///< What every rank must give alike; null for nothing.
};

/// What a save holds of one device with streams, from the call of Save until it is captured.
struct DeviceEvents {
  Device* device = nullptr;
  std::vector<EventId> streams;  ///< Recorded on the caller's streams in the call.
  std::vector<EventId> lanes;    ///< By lane; recorded by the engine behind the save's last copy.

  void ReleaseAll() const {
    for (const EventId event : streams) device->ReleaseEvent(event);
    for (const EventId event : lanes) device->ReleaseEvent(event);
  }
};

/// A save as callers and the engine share it. Callers wait on it; the engine moves it along. Safe from any thread.
class SaveTask {
 public:
  using Clock = Deadline::Clock;

  /// `snapshot` is null for a save that was given up before it began. Cancelling wakes `engine`.
  SaveTask(SavePlan plan, std::unique_ptr<Snapshot> snapshot, std::vector<DeviceEvents> events, Clock::time_point begun,
           std::shared_ptr<Inbox> engine);
  /// Demands that the save has ended.
  ~SaveTask();
  SaveTask(const SaveTask&) = delete;
  SaveTask& operator=(const SaveTask&) = delete;

  // Constant after construction.
  [[nodiscard]] const SavePlan& plan() const { return plan_; }
  [[nodiscard]] Clock::time_point begun() const { return begun_; }

  // For callers. In a forked child FailedPrecondition, false and empty stats.
  Status WaitCaptured(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  Status WaitDurable(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Orders `stream` after the capture; waits on the host until every copy is enqueued (or captured, where the stream's
  /// order can't tell). Adds the wait to the stall. Ok for a save that has ended.
  Status Fence(Stream stream, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  bool RequestCancel(Status why) CAIRN_EXCLUDES(mutex_);
  void Release() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Status status() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] SaveStats stats() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool ended() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool captured() const CAIRN_EXCLUDES(mutex_);
  /// How long Save took, and how much of it waiting for a place.
  void SetCallTimes(std::chrono::nanoseconds call, std::chrono::nanoseconds stall) CAIRN_EXCLUDES(mutex_);

  // For the engine's thread. Phases only move on; each of these notes its time.
  /// Valid until DropSnapshot.
  [[nodiscard]] Snapshot& snapshot() { return *snapshot_; }
  [[nodiscard]] std::vector<DeviceEvents>& events() { return events_; }
  void MarkCapturing() CAIRN_EXCLUDES(mutex_);
  void MarkEnqueued(bool staged) CAIRN_EXCLUDES(mutex_);
  /// Gives the events back.
  void MarkCaptured() CAIRN_EXCLUDES(mutex_);
  void MarkWritten(std::uint64_t bytes_written, bool direct, bool recycled) CAIRN_EXCLUDES(mutex_);
  /// False where the save was cancelled first: then it must not commit.
  [[nodiscard]] bool MarkCommitting() CAIRN_EXCLUDES(mutex_);
  /// The end: durable where `status` is ok. The first call counts.
  void Finish(Status status) CAIRN_EXCLUDES(mutex_);
  /// The save is failing and reads the tensors no more, but has not ended yet (other ranks may have to be told): nobody
  /// who waits for the capture is held up any longer. The first call counts.
  void LetGo(const Status& why) CAIRN_EXCLUDES(mutex_);
  /// It must not commit yet.
  [[nodiscard]] bool held() const CAIRN_EXCLUDES(mutex_);
  /// Why the save was cancelled, if it was.
  [[nodiscard]] std::optional<Status> cancelled() const CAIRN_EXCLUDES(mutex_);
  /// Frees what describes the tensors; the engine has no more use for it.
  void DropSnapshot() { snapshot_.reset(); }

 private:
  [[nodiscard]] std::chrono::nanoseconds SinceBegun() const { return Clock::now() - begun_; }
  void Advance(SavePhase phase) CAIRN_REQUIRES(mutex_);
  void ReleaseEvents() CAIRN_REQUIRES(mutex_);
  [[nodiscard]] bool Ended() const CAIRN_REQUIRES(mutex_) { return stats_.phase >= SavePhase::kDurable; }
  /// The tensors are the caller's again.
  [[nodiscard]] bool TensorsFree() const CAIRN_REQUIRES(mutex_) {
    return stats_.phase >= SavePhase::kCaptured || let_go_.has_value();
  }

  /// FailedPrecondition in a forked child, where neither the lock nor what it guards can be relied on.
  [[nodiscard]] Status CheckProcess() const;

  const pid_t process_;
  const SavePlan plan_;
  const Clock::time_point begun_;
  const std::shared_ptr<Inbox> engine_;
  std::unique_ptr<Snapshot> snapshot_;  // The engine's, after the call of Save.
  std::vector<DeviceEvents> events_;    // Lanes and streams: constant; released under mutex_.

  mutable Mutex mutex_;
  CondVar changed_;
  SaveStats stats_ CAIRN_GUARDED_BY(mutex_);
  Status status_ CAIRN_GUARDED_BY(mutex_);
  bool enqueued_ CAIRN_GUARDED_BY(mutex_) = false;
  bool events_held_ CAIRN_GUARDED_BY(mutex_) = true;
  bool reads_cpu_ CAIRN_GUARDED_BY(mutex_) = false;
  bool held_ CAIRN_GUARDED_BY(mutex_) = false;
  std::optional<Status> cancelled_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Status> let_go_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
