#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/copy_pause.h"
#include "cairn/options.h"
#include "cairn/stats.h"
#include "cairn/status.h"
#include "cairn/tensor.h"

namespace cairn {

class SaveTask;
struct Inside;
struct Wiring;

enum class IfExists : std::uint8_t {
  kFail,     ///< AlreadyExists, and nothing is written.
  kReplace,  ///< The new checkpoint takes the old one's place once it is durable, in one atomic step.
};

/// With several ranks: what is identical on all of them. If a rank's names, dtypes, shapes or texts differ from the
/// others', the save fails on all ranks, naming the difference. The tensors' bytes are not compared, unless
/// `identical_values` has their digests.
struct Replicated {
  /// Names of tensors of the state. Each is written by one rank. They are distributed in name order to as few ranks as
  /// balance allows: small states go to one rank, large ones to all in about equal bytes.
  std::vector<std::string> tensors = {};
  /// The same, for those that rank 0 must write.
  std::vector<std::string> rank0_tensors = {};
  /// Names and texts of everything else that must be identical.
  std::vector<std::pair<std::string, std::string>> identical_values = {};
  friend bool operator==(const Replicated&, const Replicated&) = default;
};

struct SaveOptions {
  /// Streams whose work so far the snapshot must see: one or more for each device that holds tensors. None for a CUDA
  /// device means its legacy default stream.
  ///
  /// Tensors in pinned or managed host memory, which streams may write, are read once the same streams have come to the
  /// call, and so are streams of devices that hold no tensors; for a device that is set up and has none here its legacy
  /// default stream. No chunk of the save is copied to the host before that, and a fence waits for it. Other tensors in
  /// host memory, and all of them while no CUDA device is set up, are read as they are.
  std::vector<Stream> streams = {};
  IfExists if_exists = IfExists::kFail;
  /// Commits the checkpoint pinned, as by Pin, so that neither retention nor a power cut comes between. A checkpoint
  /// that replaces a pinned one is pinned in any case. In a group rank 0's counts.
  bool pin = false;
  Replicated replicated = {};
};

/// A save on its way. Copies are handles on the same save. Safe from any thread; outlives the Checkpointer. In a forked
/// child every wait fails with FailedPrecondition.
class SaveHandle {
 public:
  [[nodiscard]] std::uint64_t step() const;
  /// Waits until the tensors given to this save may be overwritten.
  ///
  /// Returns at once when the copy is already complete. On failure the save is abandoned, earlier checkpoints are
  /// untouched, and every later wait returns the same status. DeadlineExceeded leaves the save running.
  Status WaitCaptured(Deadline deadline = Deadline::Infinite()) const;
  /// Waits until the death of the process cannot lose this save: it is kept in Options::memory_root, or durable. Ok
  /// from then on, whatever becomes of it on the disk. Failure as for WaitCaptured.
  Status WaitKept(Deadline deadline = Deadline::Infinite()) const;
  /// Waits until no crash and no power cut can lose this save. Failure as for WaitCaptured. Cancelled for a save that
  /// is kept and that the disk does not get, because a newer one was kept before the disk was free: at once, then.
  Status WaitDurable(Deadline deadline = Deadline::Infinite()) const;
  /// Gives the save up, unless its commit has begun (then it goes on, and Cancel returns false). Does not wait.
  bool Cancel() const;
  /// The final status once the save has ended; Ok and not ended are told apart by stats().phase.
  [[nodiscard]] Status status() const;
  [[nodiscard]] SaveStats stats() const;

  explicit SaveHandle(std::shared_ptr<SaveTask> task);

 private:
  friend struct Inside;
  std::shared_ptr<SaveTask> task_;
};

/// Which checkpoint to read.
class Selector {
 public:
  /// Permits an older checkpoint if the chosen one is Corrupt: damaged, or unreadable on its medium.
  /// Restored::passed_over names what was skipped. No other error (access, memory, descriptors) leads to an older one.
  [[nodiscard]] Selector FallBack() const {
    Selector selector = *this;
    selector.fall_back_ = true;
    return selector;
  }
  [[nodiscard]] const std::optional<std::uint64_t>& step() const { return step_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] bool fall_back() const { return fall_back_; }

 private:
  friend Selector Latest();
  friend Selector Step(std::uint64_t step);
  friend Selector Folder(std::string path);
  std::optional<std::uint64_t> step_;
  std::string folder_;
  bool fall_back_ = false;
};
/// The newest committed checkpoint by {line, step}.
[[nodiscard]] inline Selector Latest() { return {}; }
[[nodiscard]] inline Selector Step(std::uint64_t step) {
  Selector selector;
  selector.step_ = step;
  return selector;
}
/// A checkpoint folder that was copied elsewhere.
[[nodiscard]] inline Selector Folder(std::string path) {
  Selector selector;
  selector.folder_ = std::move(path);
  return selector;
}

/// Progress of a long read, in bytes. Called on the caller's thread, chunk by chunk. If it returns false, the read ends
/// Cancelled. Must not throw.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

struct RestoreOptions {
  /// Restore only these of the state's tensors: exact names or patterns with * and ?. Empty: all of them.
  std::vector<std::string> names = {};
  /// Accept a checkpoint that lacks some of the wanted tensors. They stay untouched; Restored::missing names them.
  bool allow_missing = false;
  /// Training continues from what is restored, and so does the next save. False for a read without that effect.
  bool resume = true;
  /// Work of these streams on the target tensors is finished before they are written, and later work sees the result.
  std::vector<Stream> streams = {};
  Progress progress = nullptr;
  /// Read through the page cache, so that the disk gives once what several ranks of this node read; otherwise reads
  /// bypass it, which takes less CPU time. By default it is used if this node has other ranks (see
  /// Options::host_memory_bytes) and a third or more of the bytes lies in other ranks' shards, where a rank of
  /// the same number of ranks finds what is replicated; or if there is no group.
  std::optional<bool> page_cache = std::nullopt;
};

struct Restored {
  std::uint64_t step = 0;
  std::uint64_t line = 0;  ///< Of the checkpoint. What is saved next is of a new one.
  std::string attempt;
  Values values;                         ///< This rank's typed values.
  std::uint64_t tensors = 0;             ///< Tensors written into.
  std::uint64_t bytes = 0;               ///< Tensor bytes written.
  std::vector<std::string> missing;      ///< With allow_missing: wanted, and not in the checkpoint.
  std::vector<std::string> passed_over;  ///< With FallBack: folder and reason of each that was skipped.
};

struct CheckpointInfo {
  std::uint64_t step = 0;
  /// The line of training. Each Open for writing begins a new one, and each Restore after a save, numbered above all
  /// lines of the root before.
  std::uint64_t line = 0;
  /// The id of the root that it was saved in, whose lines are meant. Empty if its writer knew none.
  std::string root;
  /// It is not in that root: its folder was copied or published.
  bool copy = false;
  std::string attempt;
  std::optional<std::uint64_t> parent;  ///< The step that this line of training was restored from.
  std::uint64_t world = 0;              ///< Ranks that wrote it.
  std::uint64_t bytes = 0;              ///< Of all its files, as its manifest has them.
  bool pinned = false;
  /// Whether tensors held infinities or NaNs when they were saved. kNone also where nobody looked: Options::nonfinite.
  NonFinite nonfinite = NonFinite::kNone;
  /// Who has written what is frozen in it.
  Frozen frozen = Frozen::kNone;
  /// And a later save has found that this had changed, though nobody said so: what is frozen in it may be older than
  /// its step. It verifies all the same.
  bool suspect = false;
  std::string path;
  /// The mirrors that have a copy, as they have last said. Only List fills it in.
  std::vector<std::string> mirrors;
  /// Corrupt where its manifest does not verify; the other fields are then empty but for step and path. Ok says nothing
  /// of the shards: they are looked at by who opens them.
  Status status;
};

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::string file;      ///< Shard file name.
  std::string alias_of;  ///< For a tied tensor: the name that holds the bytes.
  std::optional<TensorPart> part;
};

struct CheckpointDetails {
  CheckpointInfo info;
  std::vector<TensorInfo> tensors;  ///< By name.
  std::vector<Values> values;       ///< By rank.
};

/// Saves and restores checkpoints under one root. All calls are safe from any thread.
///
/// In a forked child every call fails with FailedPrecondition and the destructor does nothing.
class Checkpointer {
 public:
  /// Opens the root, takes the writer's lock, allocates and registers the pool, and sets Options::cuda_devices up. What
  /// a crash left is removed after the call returns. Until then saves write nothing, but they capture as much as the
  /// pool holds. Drain and the destructor wait for it.
  ///
  /// FailedPrecondition if another process (or this one) has the root open for writing. InvalidArgument for options
  /// that cannot work, naming the minimum that would. After a failure nothing on disk has changed, except that the root
  /// exists.
  [[nodiscard]] static Result<std::unique_ptr<Checkpointer>> Open(const Options& options);
  /// The same with the parts given: devices, queue. For experiments and tests.
  [[nodiscard]] static Result<std::unique_ptr<Checkpointer>> Open(const Options& options, Wiring wiring);
  /// Waits for saves in flight, then abandons them (see Drain for their failures): all of it within
  /// Options::close_timeout. Once the disk hangs it waits for nothing.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Sets a device up that Options did not name, so that the first call that uses it need not: streams, events,
  /// staging, the pool pinned. InvalidArgument if there is no such device.
  Status SetUp(DeviceId device);

  /// Starts a save of the state and returns before any byte of tensor data has moved.
  ///
  /// The snapshot sees all work that the caller's streams were given before the call. Typed values, and CPU tensors up
  /// to 64 KiB each (4 MiB in all), are copied inside the call. Tensors must be neither overwritten nor freed before
  /// the save is captured (see Fence). Later failures are reported by the handle, by LastFailure() and to the event
  /// callback. Immediate errors: AlreadyExists; FailedPrecondition for a step below the newest without a restore;
  /// InvalidArgument for a tensor that cannot be copied, by name; DeadlineExceeded with WhenFull::kWait. In a group
  /// rank 0 finds the first two, and the other ranks' handles end with them.
  Result<SaveHandle> Save(std::uint64_t step, const State& state, const SaveOptions& options = {});

  /// Whether to save `step`, which training has just finished. Call it once after each step, before Save.
  ///
  /// The first calls return false while training's iterations are timed. Then one save is measured. From then on the
  /// answer follows the interval with the best goodput that Options::steering and the disk allow, updated by the cost
  /// of each save. CheckpointerStats has the interval and its reason. Saves made without asking count as well. The call
  /// only reads the clock. FailedPrecondition without Options::steering.
  Result<bool> ShouldSave(std::uint64_t step);

  /// Tells the other ranks that this one cannot make the save of `step` that they wait for. Call it instead of Save, if
  /// the caller finds out before Save. It counts as one call of Save, and the handle ends with `why`. InvalidArgument
  /// if `why` is Ok or UnknownOutcome. The largest number stands for a step that the caller does not know.
  Result<SaveHandle> GiveUp(std::uint64_t step, const Status& why);

  /// Makes all later work of `stream` wait for the capture of every save so far. Call it before tensors are
  /// overwritten.
  ///
  /// If all copies are enqueued already, the host does not wait. Otherwise it waits until they are; this counts as
  /// stall. For CPU tensors it waits until they are captured. FailedPrecondition during CUDA graph capture: call it
  /// before the replay instead. Failed saves are not waited for, and their failures are not reported here.
  /// DeadlineExceeded if the host had to wait that long: the tensors must not be overwritten yet; call it again to
  /// continue waiting.
  Status Fence(Stream stream = {}, Deadline deadline = Deadline::Infinite());

  /// Holds copies to the host back while the result lives: for training that sends over the same link, such as a
  /// pipeline's stages. Pauses may overlap.
  ///
  /// A chunk on its way goes on. From the first pause on a save has one at a time. Copies begin again when the last
  /// pause has ended, or `at_most` after it began, or when a fence waits for them. Other waits do not end a pause; the
  /// destructor ends all. Never blocks and makes no call of CUDA's, so that CUDA's host functions may begin and end
  /// pauses. Does nothing in a forked child, and if the root was opened read-only.
  [[nodiscard]] CopyPause PauseCopies(std::chrono::nanoseconds at_most = std::chrono::seconds(1));

  /// Waits until fewer than Options::max_in_flight saves are in flight, or returns DeadlineExceeded.
  Status WaitForPlace(Deadline deadline = Deadline::Infinite()) const;

  /// Waits until no save is in flight. DeadlineExceeded if that takes too long. Otherwise returns the first failure
  /// that nobody has heard: one that no wait, no SaveHandle::status(), no LastFailure() and no Drain has returned, of a
  /// save that was not cancelled, skipped or replaced. If there are more of them, the message says how many, and they
  /// count as heard, too. Call it before the destructor, which reports a failure only to Options::on_event.
  ///
  /// With Options::memory_root it waits until the disk has the newest, and what the disk has failed to take is tried
  /// again (not in a group): Ok means that the disk has it. What fails again is returned.
  Status Drain(Deadline deadline = Deadline::Infinite());

  /// Waits until the checkpoint of `step`, which is durable, is at one of Options::mirrors, as that says.
  ///
  /// FailedPrecondition, at once, if the mirror will never take it: its step is not divisible by MirrorSpec::every, the
  /// root has removed it before its turn, the mirror keeps newer ones only, or has found it damaged. DeadlineExceeded,
  /// with the mirror's last error. NotFound if the root has no such step any more; Cancelled if the mirror has ended.
  /// InvalidArgument for another target; FailedPrecondition on ranks other than 0. Reads no disk.
  [[nodiscard]] Status WaitMirrored(std::uint64_t step, const std::string& target,
                                    Deadline deadline = Deadline::Infinite()) const;

  /// Reads a checkpoint into the state's tensors, in place, verified on the way.
  ///
  /// A tensor with a part, or one that was saved only in parts, is assembled from the saved parts of its logical
  /// tensor, whichever ranks wrote them: the number of ranks and the cuts may differ from those of the save.
  /// InvalidArgument if the parts do not cover it, or overlap with different contents. Values are those that the rank
  /// of this number saved.
  ///
  /// Of a checkpoint of many ranks as few shards as possible are opened: this rank's own, and those that the
  /// checkpoint's index names for the rest; all shards if there is no good index. Damage in other shards is not seen:
  /// Verify reads everything.
  ///
  /// Names, shapes, dtypes, headers and lengths are checked before the first byte of a target is written. After a later
  /// error the targets' contents are unspecified. NotFound only if the root holds no checkpoint (or not that step): if
  /// retention removes the chosen one before it is read, another one is chosen. Corrupt if it is damaged, naming the
  /// file and the place. The next saves continue from what was restored, in a new line: they are newer than every
  /// checkpoint that there is, whatever its step, and may not be below the restored step.
  ///
  /// In a group of several ranks every rank makes the call, with the same selector (but for a folder's path). Rank 0
  /// chooses, and all restore the same attempt, or all fail. Corrupt on one rank is passed over by all with FallBack;
  /// any other error of one rank ends the restore on all, with "rank R: " before the message. DeadlineExceeded, naming
  /// the missing ranks, where others are not heard: rank 0 waits Options::group_timeout once it has planned, and again
  /// once it has read, its own part, the others as long for rank 0's choice and twice as long for its verdicts. No
  /// tensor is written before every rank has planned.
  Result<Restored> Restore(const Selector& selector, const State& state, const RestoreOptions& options = {});

  /// Committed checkpoints, oldest first by {line, step}, from their manifests alone. Those whose manifests do
  /// not verify come last, with their status. A missing, short or damaged shard is found by Restore, Inspect and
  /// Verify.
  [[nodiscard]] Result<std::vector<CheckpointInfo>> List() const;
  /// Everything about a checkpoint except the tensors' bytes.
  [[nodiscard]] Result<CheckpointDetails> Inspect(const Selector& selector) const;
  /// Reads every byte of a checkpoint and checks it.
  Status Verify(const Selector& selector, const Progress& progress = {}) const;
  /// Keeps a checkpoint from retention until Unpin. Durable on return. Retention may have removed it by then:
  /// SaveOptions::pin pins in the commit.
  Status Pin(std::uint64_t step);
  Status Unpin(std::uint64_t step);
  /// Removes a checkpoint, pinned ones too. FailedPrecondition while it is being read.
  Status Remove(std::uint64_t step);

  /// Moves a committed checkpoint to the absolute `path`, outside the root and on the same filesystem. It is then no
  /// longer a step of the root, and the root's retention does not touch it. A checkpoint or link (never followed) that
  /// was at the path is removed. A crash at any point leaves the old one or the new one there, whole. Durable on
  /// return.
  ///
  /// Use it only for roots in which every step is published: a crash may leave the path's old checkpoint in the root,
  /// as this step. Do not restore from such a root by step. Whoever opens it next removes the steps that it finds.
  ///
  /// Waits until the deadline for readers of the path's checkpoint: then DeadlineExceeded, naming them. AlreadyExists
  /// if the path has something else. NotFound if there is no such step, or no directory for the path. Unsupported if
  /// the filesystem cannot replace a path (NFS, some FUSE). FailedPrecondition if the step is being read, if another
  /// writer has taken over, and on ranks other than 0. After all of these nothing has moved. UnknownOutcome if the disk
  /// may or may not have done it: nothing was removed.
  Status Publish(std::uint64_t step, const std::string& path, Deadline deadline = Deadline::Infinite());
  /// Removes the checkpoint (of any root), or the link, at the absolute `path`, outside the root and on the same
  /// filesystem. NotFound if there is nothing, InvalidArgument if it is something else; otherwise as for Publish.
  Status RemovePublished(const std::string& path, Deadline deadline = Deadline::Infinite());

  /// The newest failure of a save that was not cancelled, skipped or replaced. Ok if there was none.
  [[nodiscard]] Status LastFailure() const;
  /// Why training should stop; Ok if it should go on. Call it before each save.
  ///
  /// With Options::stop_after_failures: once so many saves in a row have failed or were refused, the newest failure; Ok
  /// again once a save is durable. Failures that it passes over count as heard. Without that option LastFailure().
  [[nodiscard]] Status CheckFailures() const;
  [[nodiscard]] CheckpointerStats stats() const;
  /// This rank's metrics in Prometheus' text format (0.0.4), for a server of the program's: docs/monitoring.md says
  /// what each is. Reads memory only. Empty in a forked child.
  [[nodiscard]] std::string MetricsText() const;
  /// Writes the last Options::trace_events events as Chrome trace JSON (for Perfetto). Times are CLOCK_MONOTONIC's.
  Status WriteTrace(const std::string& path) const;

 private:
  friend struct Inside;
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  [[nodiscard]] static Result<std::unique_ptr<Checkpointer>> Make(const Options& options, const Wiring& wiring,
                                                                  std::uint64_t& announced, std::string& memory_said);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
