#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/options.h"
#include "cairn/stats.h"
#include "cairn/status.h"
#include "cairn/tensor.h"

namespace cairn {

class SaveTask;
struct Wiring;

enum class IfExists : std::uint8_t {
  kFail,     ///< AlreadyExists, and nothing is written.
  kReplace,  ///< The new checkpoint takes the old one's place once it is durable, in one atomic step.
};

/// With several ranks: what each of them gives alike. A rank that gives other names, dtypes, shapes or texts than the
/// others fails the save on all of them, by name. The tensors' bytes are not compared, unless `alike` has their
/// digests.
struct Replicated {
  /// Names of tensors of the state: each is written by one rank. They are shared out by name, in sequence, to as few
  /// ranks as balance allows: small states go to one, large ones to all in about equal bytes.
  std::vector<std::string> tensors;
  /// The same, for those that rank 0 must write.
  std::vector<std::string> by_rank_0;
  /// Names and texts of whatever else must be the same.
  std::vector<std::pair<std::string, std::string>> alike;
  friend bool operator==(const Replicated&, const Replicated&) = default;
};

struct SaveOptions {
  /// Streams whose work so far the snapshot must see: one or more for each device that holds tensors.
  /// None for a CUDA device means its legacy default stream.
  std::vector<Stream> streams = {};
  IfExists if_exists = IfExists::kFail;
  Replicated replicated = {};
  /// Above zero: captured and written as ever, but not committed before SaveHandle::Release, for a caller who learns
  /// elsewhere whether this is to be a checkpoint. Not released within this time of its last write and checksum, the
  /// save fails with DeadlineExceeded.
  std::chrono::nanoseconds hold{0};
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
  /// Waits until no crash and no power cut can lose this save. Failure as for WaitCaptured.
  Status WaitDurable(Deadline deadline = Deadline::Infinite()) const;
  /// Lets a held save commit (see SaveOptions::hold). Does not wait; of any other save it changes nothing.
  void Release() const;
  /// Gives the save up, unless its commit has begun (then it goes on, and Cancel returns false). Does not wait.
  bool Cancel() const;
  /// The same for a reason of the caller's, which is then the status of the save: no checkpoint is to be made of it.
  bool Cancel(Status why) const;
  /// The final status once the save has ended; Ok and not ended are told apart by stats().phase.
  [[nodiscard]] Status status() const;
  [[nodiscard]] SaveStats stats() const;

  explicit SaveHandle(std::shared_ptr<SaveTask> task);

 private:
  std::shared_ptr<SaveTask> task_;
};

/// Which checkpoint to read.
class Which {
 public:
  /// Permits an older checkpoint where the chosen one is Corrupt: damaged, or on a medium that does not give it back.
  /// Restored::passed_over names what was skipped. No other error (of access, of memory or descriptors) is passed over.
  ///
  /// `damaged`: attempts that somebody has found to be so (another rank, say); they are passed over unread, unnamed.
  [[nodiscard]] Which FallBack(std::vector<std::string> damaged = {}) const {
    Which which = *this;
    which.fall_back_ = true;
    which.damaged_ = std::move(damaged);
    return which;
  }
  [[nodiscard]] const std::optional<std::uint64_t>& step() const { return step_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] bool fall_back() const { return fall_back_; }
  [[nodiscard]] const std::vector<std::string>& damaged() const { return damaged_; }

 private:
  friend Which Latest();
  friend Which Step(std::uint64_t step);
  friend Which Folder(std::string path);
  std::optional<std::uint64_t> step_;
  std::string folder_;
  bool fall_back_ = false;
  std::vector<std::string> damaged_;
};
/// The newest committed checkpoint by {generation, step}.
[[nodiscard]] inline Which Latest() { return {}; }
[[nodiscard]] inline Which Step(std::uint64_t step) {
  Which which;
  which.step_ = step;
  return which;
}
/// A checkpoint folder that was copied elsewhere.
[[nodiscard]] inline Which Folder(std::string path) {
  Which which;
  which.folder_ = std::move(path);
  return which;
}

/// Progress of a long read, in bytes; called from the caller's own thread, chunk by chunk. False gives the read up:
/// it ends Cancelled. Must not throw.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

struct RestoreOptions {
  /// Restore only these of the state's tensors: exact names or patterns with * and ?. Empty: all of them.
  std::vector<std::string> names = {};
  /// Accept a checkpoint that lacks some of the wanted tensors (they stay untouched, Restored::missing names them).
  bool allow_missing = false;
  /// Training goes on from what is restored: the next save continues it. False for a look at a checkpoint.
  bool resume = true;
  /// Reads what the rank of this number saved first, and returns its values. False where another number of ranks saved
  /// the checkpoint: that shard is then opened only if it holds a tensor that is wanted, and no values are returned.
  bool own = true;
  /// Work of these streams on the target tensors is finished before they are written, and later work sees the result.
  std::vector<Stream> streams = {};
  Progress progress = nullptr;
};

struct Restored {
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::string attempt;
  Values values;                         ///< This rank's typed values.
  std::uint64_t tensors = 0;             ///< Tensors written into.
  std::uint64_t bytes = 0;               ///< Tensor bytes written.
  std::vector<std::string> missing;      ///< With allow_missing: wanted, and not in the checkpoint.
  std::vector<std::string> passed_over;  ///< With FallBack: folder and reason of each that was skipped.
};

struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::string attempt;
  std::optional<std::uint64_t> parent;  ///< The step that this line of training was restored from.
  std::uint64_t world = 0;              ///< Ranks that wrote it.
  std::uint64_t bytes = 0;              ///< Of all its files, as its manifest has them.
  bool pinned = false;
  std::string path;
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

/// What one rank wants to know of a checkpoint.
struct InspectPart {
  /// All tensors of this rank's own shard, and its values; none where it has no shard.
  std::optional<std::uint64_t> rank;
  /// And tensors of these names, each as at least one shard holds it; left out where none does.
  std::vector<std::string> names;
};

/// A checkpoint that was chosen before it is read.
struct Chosen {
  CheckpointInfo info;
  std::vector<std::string> passed_over;  ///< With FallBack: folder and reason of each that was skipped.
  /// Keeps it from removal and replacement, by any process, until the last copy of this is gone.
  std::shared_ptr<const void> hold;
};

/// Saves and restores checkpoints under one root. All calls are safe from any thread.
///
/// In a forked child every call fails with FailedPrecondition and the destructor does nothing.
class Checkpointer {
 public:
  /// Opens the root, takes the writer's lock, allocates and registers the pool. What a crash left is swept
  /// afterwards: saves write nothing before that is done, while their captures go on as far as the pool reaches; Drain
  /// and the destructor wait for it.
  ///
  /// FailedPrecondition where another process (or this one) has the root open for writing. InvalidArgument for options
  /// that cannot work, naming the least that would. Nothing on disk has changed on failure, but for the root's making.
  [[nodiscard]] static Result<std::unique_ptr<Checkpointer>> Open(const Options& options);
  /// The same with the parts given: devices, queue. For experiments and tests.
  [[nodiscard]] static Result<std::unique_ptr<Checkpointer>> Open(const Options& options, Wiring wiring);
  /// Waits for saves in flight until Options::drain_deadline, then abandons them; what the kernel has under way is
  /// waited for until Options::close_deadline.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Starts a save of the state and returns before any byte of tensor data has moved.
  ///
  /// What the caller's streams have been given so far is what the snapshot sees. Typed values, and CPU tensors up to
  /// 64 KiB each (4 MiB in all), are copied in the call. Tensors must not be overwritten before the save is captured
  /// (see Fence) nor freed. A failure later on is on the handle, in LastFailure() and in the event callback.
  /// Errors at once: AlreadyExists; FailedPrecondition for a step below the newest without a restore; InvalidArgument
  /// for a tensor that cannot be copied, by name; DeadlineExceeded by WhenFull::kWait. In a group the first two are
  /// rank 0's to find: the others' handles end with them.
  Result<SaveHandle> Save(std::uint64_t step, const State& state, const SaveOptions& options = {});

  /// Whether to save `step`, which training has just done: call it once after each step, before Save.
  ///
  /// The first calls answer false: they time training's own iterations. Then one save is measured, and from then on the
  /// answer follows the interval of the best goodput within Options::steering and what the disk can hold, kept up to
  /// date by what each save costs; CheckpointerStats says it and why. Saves made without asking count as well. Reads
  /// the clock and no more. FailedPrecondition without Options::steering.
  Result<bool> ShouldSave(std::uint64_t step);

  /// Tells the other ranks that this one cannot make the save of `step` that they wait for: in place of Save, where the
  /// caller finds out before it calls. Counts as one call of Save, whose handle ends with `why`: InvalidArgument
  /// where that is Ok or UnknownOutcome.
  Result<SaveHandle> GiveUp(std::uint64_t step, const Status& why);

  /// Orders all later work of `stream` after the capture of every save so far: call it before tensors are overwritten.
  ///
  /// Where every copy is enqueued already the host does not wait; else it waits until they are (which counts as stall).
  /// CPU tensors make it wait until they are captured. FailedPrecondition under CUDA graph capture: call it before the
  /// replay instead. A failed save holds nobody up; its failure is not reported here. DeadlineExceeded where the host
  /// had to wait that long: the tensors may not be overwritten, and another call waits on.
  Status Fence(Stream stream = {}, Deadline deadline = Deadline::Infinite());

  /// Waits until a save would find a place in flight free, whatever Options::when_full says. DeadlineExceeded.
  Status WaitForPlace(Deadline deadline = Deadline::Infinite()) const;

  /// Waits until no save is in flight. Returns the first failure among them, DeadlineExceeded at the deadline.
  Status Drain(Deadline deadline = Deadline::Infinite());

  /// Reads a checkpoint into the state's tensors, in place, verified on the way.
  ///
  /// A tensor with a part, or one that was saved in parts alone, is put together from the saved parts of its logical
  /// tensor, whichever ranks wrote them: the number of ranks and the cutting may differ from those of the save. Parts
  /// that do not cover it, or that overlap without being the same, are InvalidArgument. Values are those of the rank of
  /// this number, none where that saved none.
  ///
  /// Of a checkpoint of many ranks as few shards as can be are opened: this rank's own, and those that the index of the
  /// checkpoint names for what is not in that; all where there is no good index. What damage the others have is not
  /// seen: Verify reads everything.
  ///
  /// Names, shapes, dtypes, headers and lengths are checked before the first byte of a target is written; after a later
  /// error the targets' contents are unspecified. NotFound only where the root holds no checkpoint (or not that step):
  /// one that retention removes before it can be read is chosen anew. Corrupt where one is damaged, naming the file and
  /// the place. The next saves continue from what was restored: from
  /// an older step than the newest they start a new generation.
  Result<Restored> Restore(const Which& which, const State& state, const RestoreOptions& options = {});

  /// Committed checkpoints, oldest first by {generation, step}, as their manifests have them; those whose manifests do
  /// not verify are listed with their status, last. That a shard is missing, short or damaged is for Restore, Inspect,
  /// Choose and Verify to find.
  [[nodiscard]] Result<std::vector<CheckpointInfo>> List() const;
  /// Everything about a checkpoint but the tensors' bytes.
  [[nodiscard]] Result<CheckpointDetails> Inspect(const Which& which) const;
  /// The same of one part, for whoever is to read no more than that: only the shards that hold it are looked at, by the
  /// checkpoint's index where it has one. `values` has the one rank's, at its number, and none of the others'.
  [[nodiscard]] Result<CheckpointDetails> Inspect(const Which& which, const InspectPart& part) const;
  /// Chooses a checkpoint as Restore does, by manifests alone, and keeps it there for whoever must know what is in it
  /// before he reads it, by its step or folder. Of shards it says nothing: where `which` may fall back, manifests that
  /// do not verify are passed over. Corrupt where none is left.
  [[nodiscard]] Result<Chosen> Choose(const Which& which) const;
  /// Reads every byte of a checkpoint and checks it.
  Status Verify(const Which& which, const Progress& progress = {}) const;
  /// Keeps a checkpoint from retention until Unpin. Durable on return.
  Status Pin(std::uint64_t step);
  Status Unpin(std::uint64_t step);
  /// Removes a checkpoint, pinned ones too. FailedPrecondition while it is being read.
  Status Remove(std::uint64_t step);

  /// Moves a committed checkpoint to the absolute `path`, outside the root and on the same filesystem: it is no longer
  /// a step of the root, and the root's retention no longer its own. What has the path, a checkpoint or a link (never
  /// followed), goes; a crash at any point leaves the one or the other there, whole. Durable on return.
  ///
  /// For a root whose steps are all published: a crash may leave what the path had before in it, as this step. Nobody
  /// restores from such a root by step, and who opens it next removes the steps that it finds.
  ///
  /// A checkpoint that is being read is waited for until the deadline: then DeadlineExceeded, naming the readers.
  /// AlreadyExists where the path has something else; NotFound where there is no such step, or no directory for the
  /// path; Unsupported where the filesystem cannot do it (NFS and some FUSE replace no path); FailedPrecondition where
  /// the step is being read or another writer has taken over, and on ranks other than 0. After all of these the step
  /// and what has the path are where they were. UnknownOutcome where the disk may or may not have it: nothing was
  /// removed.
  Status Publish(std::uint64_t step, const std::string& path, Deadline deadline = Deadline::Infinite());
  /// Removes the checkpoint (of any root), or the link, that has the absolute `path`, outside the root and on the same
  /// filesystem. NotFound where there is nothing, InvalidArgument where it is something else; else as for Publish.
  Status RemovePublished(const std::string& path, Deadline deadline = Deadline::Infinite());

  /// The newest failure of a save that was not cancelled, skipped or replaced; Ok where there was none.
  [[nodiscard]] Status LastFailure() const;
  [[nodiscard]] CheckpointerStats stats() const;
  /// Writes the last Options::trace_events events as Chrome trace JSON (opens in Perfetto).
  Status WriteTrace(const std::string& path) const;

 private:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  [[nodiscard]] static Result<std::unique_ptr<Checkpointer>> Make(const Options& options, const Wiring& wiring);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
