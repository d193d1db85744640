#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/context.h"
#include "engine/failures.h"
#include "engine/retention.h"
#include "engine/save_job.h"
#include "engine/save_task.h"
#include "io/disk_watch.h"

namespace cairn {

/// The engine's thread: it owns the queue, sleeps in it, and only submits and completes.
///
/// Oldest first: a save gets buffers and device work only when every copy of all older saves has been enqueued (or they
/// have ended). Then it uses what they leave. None of its data is written while older saves have chunks to come, and
/// one chunk at a time while they seal and commit, whose header and manifest would wait behind more in the disk's queue
/// (SaveJob::writes_of_younger).
class Engine {
 public:
  /// Starts the thread. Fails if the queue cannot be made.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> Start(EngineParts parts);
  /// Waits until Stop has finished.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Abandons saves in flight and waits for pending kernel and device work. False at the deadline, or once the disk
  /// hangs: waiters of saves are notified, and neither the engine nor what it uses may be destroyed.
  [[nodiscard]] bool Stop(Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// After a Stop that returned false: calls `then` once the thread uses nothing any more, on it, or at once.
  void AtEnd(std::function<void()> then) CAIRN_EXCLUDES(mutex_);

  /// Takes a save. `given_up` as in SaveJob::Start. Saves run in the order of calls.
  void Submit(const std::shared_ptr<SaveTask>& task, Status given_up = {}) CAIRN_EXCLUDES(mutex_);
  /// Counts a save that its call has refused as a failed one. Nobody has to hear of it any more.
  void CountRefused(const Status& why) CAIRN_EXCLUDES(mutex_);
  /// Adds a device after the start, before the first save that uses it.
  void AddDevice(const std::shared_ptr<Device>& device, std::byte* staging);
  /// For saves of another engine: calls `done`, on this one's thread, once the line is recorded in the root (see
  /// LineRecord::Ensure), or with the reason once the disk hangs.
  void BeginLine(std::uint64_t line, StatusDone done);
  /// On the coordinator, of several ranks: no save is submitted any more. See SaveLine::AnnounceOff.
  void AnnounceOff();
  /// The same: this step is not submitted. See SaveLine::AnnounceToDisk.
  void AnnounceToDisk(std::uint64_t step);
  /// On other ranks: the coordinator's save of this step fails, because of `why`, as if it were submitted here and
  /// given up; but it counts nowhere.
  void GiveUpCall(std::uint64_t step, const Status& why);
  /// What retention lets go has changed without a save.
  void Retire();
  /// No save follows, or none that could use them: removes the spares, and makes no more.
  void EndSpares();
  [[nodiscard]] const std::shared_ptr<Inbox>& inbox() const { return context_.inbox; }
  [[nodiscard]] const std::shared_ptr<CopyPauses>& pauses() const { return context_.pauses; }
  /// Of a root in memory.
  [[nodiscard]] MappedFiles& mapped_files() { return context_.mapped; }

  /// Why saves are refused: the disk hangs. Else Ok.
  [[nodiscard]] Status DiskHangs() const CAIRN_EXCLUDES(mutex_);
  /// What WaitIdle waits for, in words: "2 saves (steps 3, 4)". With the operation that the disk does not answer.
  [[nodiscard]] std::string Busy() const CAIRN_EXCLUDES(mutex_);
  /// A restore into `targets` begins. If it may change tensors that are frozen, saves submitted later write them again.
  /// Safe from any thread.
  void ForgetKept(std::shared_ptr<const TensorTable> targets);
  /// Saves that have not ended, oldest first.
  [[nodiscard]] std::vector<std::shared_ptr<SaveTask>> InFlight() const CAIRN_EXCLUDES(mutex_);
  /// Waits until fewer than `places` saves are in flight. False at the deadline.
  [[nodiscard]] bool WaitForPlace(int places, Deadline deadline) const CAIRN_EXCLUDES(mutex_);
  /// Waits until no save, sweep or removal is in progress; for removals not once the disk hangs. False at the deadline.
  [[nodiscard]] bool WaitIdle(Deadline deadline) const CAIRN_EXCLUDES(mutex_);
  /// See Failures.
  [[nodiscard]] Status NewestFailure() const CAIRN_EXCLUDES(mutex_);
  /// The newest once so many saves in a row have failed or were refused, with their number; else Ok. All failures count
  /// as heard.
  [[nodiscard]] Status FailureAfter(std::uint64_t in_a_row) const CAIRN_EXCLUDES(mutex_);
  /// Whether any save is in flight. Cheap: stats() reads what the kernel says of the pool.
  [[nodiscard]] bool HasSaves() const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Status TakeUnheardFailure() const CAIRN_EXCLUDES(mutex_);
  /// Fills in the engine's counters.
  void AddStats(CheckpointerStats& stats) const CAIRN_EXCLUDES(mutex_);

 private:
  explicit Engine(EngineParts parts);

  void Run(const std::function<void(Status)>& started);
  void AbandonTasks(const std::vector<std::shared_ptr<SaveTask>>& tasks) CAIRN_EXCLUDES(mutex_);
  void Loop();
  void RemoveSpares();
  [[nodiscard]] Deadline WakesAt();
  void Advance();
  void WatchDisk() CAIRN_EXCLUDES(mutex_);
  /// Not for one that hangs.
  [[nodiscard]] bool WaitsForRemovals() const CAIRN_REQUIRES(mutex_) {
    return (removing_ || behind_ != 0) && disk_hangs_.ok() && !removal_hangs_;
  }
  [[nodiscard]] bool CopiesPaused() const;
  [[nodiscard]] bool MakesRoom(const ShardWriter& writer) const;
  void RemoveEndedJobs() CAIRN_EXCLUDES(mutex_);
  /// An ended save, for the metrics.
  void Count(const Status& status, const SaveStats& stats) const;
  void CountInARow(const Status& status) CAIRN_REQUIRES(mutex_);
  void OnRetention(bool busy) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t FilesInFlight() const;
  /// Those of BeginLine that still wait, because the disk hangs.
  void GiveUpLines(const Status& hangs);

  // For the engine's thread, except context_.parts, inbox and pauses. Jobs are oldest first.
  EngineContext context_;
  std::deque<std::shared_ptr<SaveJob>> jobs_;
  Retention retention_;
  // Who waits in BeginLine; null once told.
  std::vector<std::shared_ptr<StatusDone>> lines_;
  std::optional<DiskWatch> watch_;
  /// What the last Advance found; its sleep must end when the pauses do, also if that was a moment later.
  bool copies_paused_ = false;
  bool stopping_ = false;
  std::thread thread_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<std::shared_ptr<SaveTask>> tasks_ CAIRN_GUARDED_BY(mutex_);
  // Retention is busy.
  bool removing_ CAIRN_GUARDED_BY(mutex_) = false;
  // Saves whose waiters have been told, but of which operations, or the removal of the attempt, are in flight.
  std::size_t behind_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status disk_hangs_ CAIRN_GUARDED_BY(mutex_);
  bool removal_hangs_ CAIRN_GUARDED_BY(mutex_) = false;
  // The operation that the disk does not answer.
  std::string slow_ CAIRN_GUARDED_BY(mutex_);
  // The thread has ended.
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::function<void()> at_end_ CAIRN_GUARDED_BY(mutex_);
  Failures failures_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t started_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_ CAIRN_GUARDED_BY(mutex_) = 0;
  SaveTask::Clock::time_point durable_since_ CAIRN_GUARDED_BY(mutex_);  // The newest of them.
  std::uint64_t failed_ CAIRN_GUARDED_BY(mutex_) = 0;
  // Failures since the newest that is durable.
  std::uint64_t in_a_row_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status newest_in_a_row_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t bytes_written_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t recycled_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string not_recycled_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
