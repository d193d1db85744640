#pragma once

#include <algorithm>
#include <memory>

#include "base/lifecycle.h"
#include "engine/capture.h"
#include "engine/context.h"
#include "engine/coordination.h"
#include "engine/save_task.h"
#include "engine/shard_writer.h"

namespace cairn {

enum class JobStage : std::uint8_t {
  kRunning,
  /// Operations in flight end; the other ranks are notified.
  kFailing,
  /// Its files are being removed.
  kAbandoning,
  kEnded,
};
[[nodiscard]] constexpr bool Follows(JobStage from, JobStage to) { return from < to; }

/// One save on the engine's thread, from accepted to durable or failed: its capture, its shard writer and the ranks'
/// agreement, each with its own lifecycle.
///
/// A save that fails is settled, and its waiters are told, once its attempt is removed, so that the space is free
/// again; but after a second in any case, and at once if the disk hangs. The rest then ends behind it.
class SaveJob : public std::enable_shared_from_this<SaveJob> {
 public:
  SaveJob(EngineContext& context, std::shared_ptr<SaveTask> task);

  /// Starts it. With a failed `given_up`, the save only takes part in the ranks' agreement, as failed.
  void Start(Status given_up);
  /// Begins the ranks' agreement: at the start, but on the coordinator only after the sweep.
  void NameAttempt() { coordination_->Begin(); }
  /// Enqueues copies (chunks only with `chunks`). Returns at once.
  void Advance(bool chunks);
  /// Younger saves may use the devices: every copy that reads the caller's tensors is enqueued, or the save has failed.
  [[nodiscard]] bool enqueued() const { return !running() || (capture_ != nullptr && capture_->enqueued()); }
  /// Younger saves may use the pool.
  [[nodiscard]] bool all_buffered() const {
    return !running() || (capture_ != nullptr && capture_->enqueued() && capture_->all_buffered());
  }
  /// Null once it has ended.
  [[nodiscard]] ShardWriter* writer() const { return writer_.get(); }
  /// How many writes may be at the disk for younger saves to submit one more, of at most `depth`. None while this one
  /// has chunks to come; one while it has small ones to come, so that the disk stays busy and they wait for one chunk
  /// at most; all while it waits for its release (and then they wait for those), or has none left and waits for the
  /// coordinator.
  [[nodiscard]] int writes_of_younger(int depth) const {
    if (settled_ || !running() || writer_->release_by() || coordination_->has_written()) return depth;
    return writer_->sealing() ? std::min(depth, 1) : 0;
  }
  /// Nothing of it is in flight any more.
  [[nodiscard]] bool ended() const { return stage_ == JobStage::kEnded; }
  /// Its outcome is decided, though operations or the removal of its attempt may still be in flight.
  [[nodiscard]] bool settled() const { return settled_; }
  [[nodiscard]] const Status& outcome() const { return outcome_; }
  /// Notifies the waiters, once it is settled and everything that reports it is up to date.
  void NotifyWaiters() {
    told_ = true;
    keeps() ? task_->MarkInMemory() : task_->Finish(outcome_);
  }
  [[nodiscard]] bool told() const { return told_; }
  /// It has not begun, and goes to the disk's engine: see Coordination::Callbacks::moved.
  [[nodiscard]] bool moved() const { return moves_ && ended(); }
  /// It will, once a worker has laid it out.
  [[nodiscard]] bool moves() const { return moves_ && running(); }
  /// Its attempt's id; empty if it had none.
  [[nodiscard]] const std::string& attempt() const { return attempt_; }
  /// Its attempt is being removed, and a save that needs the space should wait for that: not for long.
  [[nodiscard]] bool frees_space() const { return stage_ == JobStage::kAbandoning && !settled_; }
  [[nodiscard]] const std::shared_ptr<SaveTask>& task() const { return task_; }
  /// Fails it when the checkpointer closes, unless its commit has begun. Stops waiting for other ranks, and reads from
  /// the disk whether they have committed.
  void Close();
  /// The disk hangs: settles it at once, unless only other ranks know its outcome.
  void OnDiskHangs(const Status& hangs);
  /// What removes files hangs: settles it if that is what it waits for.
  void OnRemovalHangs(const Status& hangs);
  /// A restore into `targets` begins: what this save keeps is not linked behind that if it may change there.
  void ForgetKept(const TensorTable& targets);
  /// Handles SaveHandle::Cancel and Release, and deadlines for a release and for messages of other ranks.
  void PollRequests();
  /// When PollRequests must be called.
  [[nodiscard]] Deadline wakes_at() const;

 private:
  using Stage = JobStage;

  /// It is kept, and its end is up to the disk, which gets the snapshot.
  [[nodiscard]] bool keeps() const { return context_.parts.in_memory && outcome_.ok(); }
  [[nodiscard]] bool running() const { return stage_ == JobStage::kRunning; }
  [[nodiscard]] Status Closed() const;
  [[nodiscard]] Coordination::Callbacks CoordinationCallbacks();
  [[nodiscard]] ShardWriter::Callbacks WriterCallbacks();
  [[nodiscard]] Capture::Callbacks CaptureCallbacks();

  void OnLaidOut();
  /// The tensors may be overwritten. What is frozen may not be linked yet: that needs a committed file, and no tensor.
  void TellCaptured();
  void MakeHeaderIfNamed();
  void SealIfWritten();
  void OnSealed();
  void OnCommitted(Status status);
  /// Fails it, or, if it is failing, continues that after some operation has ended.
  void Fail(Status status);
  void AbandonIfIdle();
  void Abandon();
  /// Tells a failure if nothing reads the tensors any more.
  void SettleFailure();
  void Move();
  void Settle(Status status);
  [[nodiscard]] Severity SeverityOf(const Status& failure);
  void End(Status status);
  void OnBug(Status bug);

  EngineContext& context_;
  const std::shared_ptr<SaveTask> task_;
  Lifecycle<JobStage> stage_{"a save", JobStage::kRunning, [this](Status bug) { OnBug(std::move(bug)); }};
  std::shared_ptr<Coordination> coordination_;
  std::shared_ptr<ShardWriter> writer_;
  // Once the stream is laid out.
  std::shared_ptr<Capture> capture_;
  // What it may link, until the stream is laid out.
  std::shared_ptr<KeptFile> kept_;
  // A worker is reading the snapshot.
  bool laying_out_ = false;
  bool closing_ = false;
  bool settled_ = false;
  bool told_ = false;
  bool moves_ = false;
  std::string attempt_;
  // A failure is told as soon as nothing reads the tensors any more.
  bool tells_failure_ = false;
  // When a failure is told, though its attempt is not removed yet.
  Deadline settle_by_ = Deadline::Infinite();
  Status failure_;
  Status outcome_;
};

}  // namespace cairn
