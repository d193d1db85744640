#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/blocking_calls.h"
#include "api/devices.h"
#include "api/metrics_file.h"
#include "api/mirrors.h"
#include "api/pool_growth.h"
#include "api/steered_saves.h"
#include "api/wiring.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "base/worker_pool.h"
#include "cairn/checkpointer.h"
#include "engine/replicas.h"
#include "engine/save_task.h"
#include "restore/reader.h"
#include "restore/selection.h"
#include "store/pins.h"
#include "store/root.h"

namespace cairn {

class Engine;
class Ledger;
class MemoryRoot;

/// What the calls of one Checkpointer share. open.cc makes it; the calls are in save.cc, fence.cc, read.cc and
/// retention.cc, and set_up.cc and PoolGrowth have what they add to it on first use.
///
/// Members are destroyed from the last to the first: the engine goes before what it uses, the pool before the devices
/// that it is pinned with, and these before the workers that copy for them.
class Checkpointer::Impl {
 public:
  Impl(Options resolved, bool pool_grows, std::uint64_t node_ranks, std::shared_ptr<Metrics> counted);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Constant after Open.
  const pid_t process = ::getpid();
  const Options options;
  // The user gave no host_memory_bytes: the pool grows with the state.
  const bool grows;
  const std::uint64_t ranks_of_node;
  const std::shared_ptr<Metrics> metrics;
  const double opened_at = UnixSeconds();
  std::string root_path;
  std::string root_id;      // Empty if the root has no `.writer`.
  std::string memory_said;  // On other ranks than 0: see OpenSharedRoot.
  std::string queue_name;
  std::string queue_reason;
  IoQueueFactory make_queue;
  std::shared_ptr<Group> group;

  // Each synchronises itself.
  WorkerPool workers;
  Trace trace;
  KeptHeader kept_header;
  std::unique_ptr<Devices> devices;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<Root> root;
  const WriterCheck check_writer = [this] { return CheckWriter(); };
  std::unique_ptr<Ledger> ledger;                 // Rank 0's; null on other ranks, which have `restored`.
  std::unique_ptr<SteeredSaves> steered;          // Null without Options::steering.
  std::unique_ptr<Mirrors> mirrors;               // Null without Options::mirrors, and on other ranks than 0.
  std::unique_ptr<BlockingCalls> blocking;        // Before the engine, so that it ends after it.
  std::unique_ptr<Engine> engine;                 // Null if the root was opened read-only.
  std::unique_ptr<PoolGrowth> growth;             // Null if so, or if the pool does not grow.
  std::unique_ptr<MemoryRoot> memory;             // Null without Options::memory_root. Ends before the engine.
  std::atomic<std::uint64_t> restore_rounds = 0;  // Begun so far: see RestoreTogether.

  std::unique_ptr<MetricsFile> metrics_file;  // Null without Options::metrics_file.

  // Held through a call of Save: saves are numbered in the order in which the engine gets them.
  Mutex save_mutex;
  std::uint64_t next_sequence CAIRN_GUARDED_BY(save_mutex) = 0;
  std::weak_ptr<const TensorTable> checked_table CAIRN_GUARDED_BY(save_mutex);
  std::weak_ptr<const TensorTable> asked_table CAIRN_GUARDED_BY(save_mutex);  // See Examine.
  // A copy of it; null if nothing in it is written by streams.
  std::shared_ptr<const TensorTable> marked_table CAIRN_GUARDED_BY(save_mutex);
  std::optional<ReplicaAssigner> sharing CAIRN_GUARDED_BY(save_mutex);  // This rank's; made by the first save.
  // See CloseBy.
  std::atomic<bool> abandons_at_once = false;
  std::atomic<Deadline::Clock::time_point> close_by = Deadline::Infinite().when();
  Mutex restored_mutex;
  std::optional<ManifestParent> restored CAIRN_GUARDED_BY(restored_mutex);  // What this rank restored last.
  Mutex pin_mutex;  // Held while a pin is changed on the disk and in the ledger.
  Mutex device_mutex;
  std::atomic<bool> fence_waited = false;            // An event has said so.
  std::atomic<bool> root_moved = false;              // An event has said so.
  mutable std::atomic<bool> memory_ignored = false;  // An event has said so.
  Mutex fence_mutex;
  std::map<Device*, EventId> fence_events CAIRN_GUARDED_BY(fence_mutex);

  // Open.
  void ReportNodeRanks(const NodeRanks& node) const;
  [[nodiscard]] Status OpenRoot();
  [[nodiscard]] Status MakePool();
  [[nodiscard]] Status StartEngine(const Wiring& wiring);
  [[nodiscard]] Status OpenMemory(const Wiring& wiring);
  [[nodiscard]] Status StartMirrors(const std::string& command, const Wiring& wiring);
  /// On the engine's thread: a save has ended.
  void SaveEnded();
  /// This is never freed, because threads go on using it. Once none of them writes any more, they release the lock.
  void LeaveBehind();

  /// FailedPrecondition in a forked child.
  [[nodiscard]] Status CheckProcess() const;
  /// The same, and if the root was opened read-only.
  [[nodiscard]] Status CheckWritable() const;
  /// Before every commit and removal: see Root. An event says once if the root was moved. May block.
  [[nodiscard]] Status CheckWriter();
  /// For calls that read by the path.
  [[nodiscard]] Status CheckReadable(const Selector& selector) const;

  // Set up on first use. An event names what it cost.
  Result<std::shared_ptr<Device>> GetDevice(DeviceId id) CAIRN_EXCLUDES(device_mutex);
  Result<std::shared_ptr<Device>> SetUpDevice(DeviceId id, bool late) CAIRN_EXCLUDES(device_mutex);
  /// If Options::gpu_checksums asks for what the device cannot do.
  void WarnWithoutGpuChecksums(const Device& device) const;

  // Save.
  /// Checkpointer::Save of the state's tensors and these values. With a `hold` the save is not committed before
  /// SaveTask::Release: for a caller that learns elsewhere whether this is to be a checkpoint. If it is not released
  /// within `hold` after its last write and checksum, it fails with DeadlineExceeded.
  Result<SaveHandle> Save(std::uint64_t step, const State& state, Values values, const SaveOptions& save_options,
                          std::chrono::nanoseconds hold) CAIRN_EXCLUDES(save_mutex);
  /// Called in place of Save by a caller who finds out before that it cannot be made.
  void Refuse(std::uint64_t step, const Status& why) CAIRN_EXCLUDES(save_mutex);
  /// Save raises `why` in its call: it counts as a failed one, and the ranks that wait for it hear of it.
  void TellRefused(std::uint64_t step, std::uint64_t sequence, SaveTask::Clock::time_point begun, const Status& why)
      CAIRN_REQUIRES(save_mutex);
  /// Submits a save that ends with `why`, so that the ranks that wait for it hear of it.
  std::shared_ptr<SaveTask> SubmitFailed(std::uint64_t step, std::uint64_t sequence, SaveTask::Clock::time_point begun,
                                         const Status& why) CAIRN_REQUIRES(save_mutex);
  Status CheckTensors(const std::shared_ptr<const TensorTable>& table) CAIRN_REQUIRES(save_mutex);
  /// What a save of this state's tensors will say of them: which it copies in its call, and which it reads later. The
  /// tensors as they are, where the save will refuse them.
  std::shared_ptr<const TensorTable> Foresee(const State& state) CAIRN_EXCLUDES(save_mutex);
  /// CheckTensors. Then the same table, or a copy that says which CPU tensors streams may still write.
  Result<std::shared_ptr<const TensorTable>> Examine(const std::shared_ptr<const TensorTable>& table)
      CAIRN_REQUIRES(save_mutex);
  /// Waits for a free place of `saver` and accepts the save. Cancelled if WhenFull::kSkip skips it.
  Result<SavePlan> Admit(std::uint64_t step, IfExists if_exists, Engine& saver) CAIRN_REQUIRES(save_mutex)
      CAIRN_EXCLUDES(restored_mutex);
  Status ApplyWhenFull(std::uint64_t step, Deadline deadline, Engine& saver) CAIRN_REQUIRES(save_mutex);
  /// Saves are kept in memory.
  [[nodiscard]] bool Keeps() const;
  /// The engine that saves go to first.
  [[nodiscard]] Engine& Saver() const;
  /// Whether this one may go there, with room for it; not that of a rank alone if it is `due` on the disk.
  /// InvalidArgument if it cannot.
  [[nodiscard]] Result<bool> CanKeep(bool due, const TensorTable& table, const Values& values)
      CAIRN_REQUIRES(save_mutex);
  /// Records the caller's streams on each device of `written`, the part of `table` that this rank writes.
  Result<std::vector<DeviceEvents>> RecordStreams(const TensorTable& table, const TensorTable& written,
                                                  const std::vector<Stream>& streams);

  // Fence.
  /// Saves that may read the caller's tensors.
  [[nodiscard]] std::vector<std::shared_ptr<SaveTask>> Unfenced() const;
  Status RefuseWhileCapturing(Stream stream) CAIRN_EXCLUDES(fence_mutex);
  /// SaveTask::Fence, with a warning, once, if the disk holds it up.
  Status FenceOn(SaveTask& task, Stream stream, Deadline deadline);

  // Read.
  /// Where reads look beside the root.
  [[nodiscard]] MemoryPlace memory_place() const;
  [[nodiscard]] RestoreParts MakeRestoreParts();
  /// Checkpointer::Restore of what the caller plans once the checkpoint is chosen.
  [[nodiscard]] Result<Restored> Restore(const Selector& selector, const RestoreCall& call)
      CAIRN_EXCLUDES(restored_mutex);
  /// Chooses a checkpoint as Restore does, from its manifest alone, and protects it from removal while Chosen::hold
  /// lives. `inspect`: with the contents of all shards' headers.
  [[nodiscard]] Result<Chosen> Choose(const Selector& selector, bool inspect);
  /// Checkpointer::Inspect for one part. Only the shards that hold the part are opened, by the checkpoint's index if it
  /// has one. CheckpointDetails::values has that rank's values, at its number, and no others.
  [[nodiscard]] Result<CheckpointDetails> Inspect(const Selector& selector, const InspectPart& part);
  /// The next saves continue from what was restored.
  void ContinueFrom(const Restored& now) CAIRN_EXCLUDES(restored_mutex);

  // Metrics.
  /// What a caller asked for as one restore, or load, has ended.
  void CountRestore(bool done) const { ++(done ? metrics->restores : metrics->failed_restores); }
  [[nodiscard]] std::string MetricsText() const;
  /// What the engines count.
  void AddCounters(CheckpointerStats& stats) const;
  /// The newest durable checkpoint and the free space.
  void AddMetrics(CheckpointerStats& stats) const;

  // Wait.
  /// The two halves of Checkpointer::Drain.
  [[nodiscard]] Status WaitIdle(Deadline deadline) const;
  [[nodiscard]] Status TakeUnheardFailure();
  /// The same, once WaitIdle has returned, and that of what the disk has failed to take: another thread may have heard.
  [[nodiscard]] Status TakeDrainFailure();
  /// Checkpointer::WaitMirrored.
  [[nodiscard]] Status WaitMirrored(std::uint64_t step, const std::string& target, Deadline deadline) const;
  /// Mirrors::WaitEnded: no save may follow. Ok without mirrors.
  [[nodiscard]] Status WaitMirrorsEnded(Deadline deadline) {
    return mirrors == nullptr ? Status::Ok() : mirrors->WaitEnded(deadline);
  }
  /// Names the mirrors that have not ended, and leaves them behind. No save may follow. Nothing in a forked child.
  void LeaveMirrors() {
    if (mirrors != nullptr && ::getpid() == process) static_cast<void>(mirrors->End(Deadline::In({})));
  }
  /// Whether any save is in flight.
  [[nodiscard]] bool HasSaves() const;
  /// Ends all pauses: for a program that only waits for its saves now.
  void EndPauses();
  /// The destructor abandons saves in flight at once, and ends by this moment where close_timeout does not say an
  /// earlier one.
  void CloseBy(Deadline end) {
    abandons_at_once = true;
    close_by = end.when();
  }

  // Retention.
  /// Pins for the user or for keep_best, or ends the pin. Each has a pin of its own; keep_best leaves a user's alone.
  [[nodiscard]] Status SetPinned(std::uint64_t step, PinOwner owner, bool pinned) CAIRN_EXCLUDES(pin_mutex);
  /// For a call that only rank 0 may make. On other ranks FailedPrecondition, beginning with `what`.
  [[nodiscard]] Status CheckRank0(const std::string& what,
                                  std::string_view does = "publishes and removes checkpoints") const;
  void Warn(const std::vector<std::string>& messages, std::string_view phase) const;
  void Notify(const Event& event) const { options.on_event(event); }
};

/// A callback that counts the events, fills in what all of them have, and passes them on. `on_event` may be null.
[[nodiscard]] EventCallback CountedEvents(EventCallback on_event, std::shared_ptr<Metrics> metrics, int rank,
                                          std::string root);

/// What is behind the public objects. The Python package and tests act between the halves of their calls.
struct Inside {
  [[nodiscard]] static Checkpointer::Impl& Of(const Checkpointer& checkpointer) { return *checkpointer.impl_; }
  [[nodiscard]] static SaveTask& Of(const SaveHandle& save) { return *save.task_; }
  /// When a close that has begun then and must end by `end` abandons the saves that are left: a quarter of the time, at
  /// most 5 s, is for that.
  [[nodiscard]] static Deadline AbandonsBefore(Deadline end, Deadline begun = Deadline::In({})) {
    constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(5);
    return Deadline::At(end.when() - std::min((end.when() - begun.when()) / 4, kLongest));
  }
};

}  // namespace cairn
