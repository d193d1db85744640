#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/context.h"
#include "engine/save_job.h"
#include "engine/save_task.h"
#include "store/remove.h"

namespace cairn {

/// The engine's thread: it owns the queue, sleeps in it, and only submits and completes.
///
/// Oldest first: no buffer and no device work goes to a save until every copy of every older one has been enqueued (or
/// that save has ended); then a younger save fills what the older ones leave. No data of it is written
/// before the older one has committed: that one's header and manifest would wait behind it in the disk's queue.
class Engine {
 public:
  /// Starts the thread; fails where its queue cannot be made.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> Start(EngineParts parts);
  /// Waits until Stop is done.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Abandons what is in flight, and waits for what the kernel and the devices have under way. False at the deadline:
  /// those who wait for saves have been told, and neither the engine nor what it uses may be destroyed any more.
  [[nodiscard]] bool Stop(Deadline deadline) CAIRN_EXCLUDES(mutex_);

  /// Takes a save. `given_up` as SaveJob::Start has it. In the order of calls.
  void Submit(const std::shared_ptr<SaveTask>& task, Status given_up = {}) CAIRN_EXCLUDES(mutex_);
  /// A device that was set up after the start; before the first save that uses it.
  void AddDevice(const std::shared_ptr<Device>& device, std::byte* staging);
  [[nodiscard]] const std::shared_ptr<Inbox>& inbox() const { return context_.inbox; }

  /// Saves that have not ended, oldest first.
  [[nodiscard]] std::vector<std::shared_ptr<SaveTask>> InFlight() const CAIRN_EXCLUDES(mutex_);
  /// Waits until fewer than `places` saves are in flight. False at the deadline.
  [[nodiscard]] bool WaitForPlace(int places, Deadline deadline) const CAIRN_EXCLUDES(mutex_);
  /// Waits until no save is in flight, what a crash left is swept, and the removals that retention ordered are done.
  /// False at the deadline.
  [[nodiscard]] bool WaitIdle(Deadline deadline) const CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Status last_failure() const CAIRN_EXCLUDES(mutex_);
  /// The counters of CheckpointerStats.
  void AddStats(CheckpointerStats& stats) const CAIRN_EXCLUDES(mutex_);

 private:
  explicit Engine(EngineParts parts);

  void Run(const std::function<void(Status)>& started);
  void GiveUpOn(const std::vector<std::shared_ptr<SaveTask>>& tasks) CAIRN_EXCLUDES(mutex_);
  void Loop();
  void Advance();
  void CheckDevices();
  void ForgetEnded() CAIRN_EXCLUDES(mutex_);
  void Retire();
  /// Beside the start of training: unlinking what is as large as a checkpoint takes as long as the disk likes.
  void SweepLeftovers();
  /// The root once more, after an outcome that is unknown.
  void Relist();
  void Settle();
  void LookAtKept();
  void OnSettled();
  void RemoveNext();
  void TellRemoval(std::uint64_t step, const Removal& removal);
  [[nodiscard]] SpareWish Spares() const;
  [[nodiscard]] bool recycles() const { return context_.parts.options.recycle && context_.parts.group->rank() == 0; }

  EngineContext context_;                      // The thread's own, but for parts and inbox.
  std::deque<std::shared_ptr<SaveJob>> jobs_;  // The thread's own. Oldest first.
  std::deque<std::uint64_t> removals_;         // The thread's own.
  bool relist_due_ = false;                    // The thread's own.
  bool removal_under_way_ = false;             // The thread's own: of the first.
  bool stopping_ = false;                      // The thread's own.
  bool told_unsupported_ = false;              // The thread's own.
  std::thread thread_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<std::shared_ptr<SaveTask>> tasks_ CAIRN_GUARDED_BY(mutex_);
  bool removing_ CAIRN_GUARDED_BY(mutex_) = false;  // Or sweeping.
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;     // The thread has.
  Status last_failure_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t started_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t failed_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_written_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t recycled_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string not_recycled_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
