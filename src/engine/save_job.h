#pragma once

#include <memory>
#include <optional>

#include "base/lifecycle.h"
#include "engine/capture.h"
#include "engine/context.h"
#include "engine/coordination.h"
#include "engine/save_task.h"
#include "engine/shard_writer.h"

namespace cairn {

enum class JobStage : std::uint8_t {
  kRunning,
  kFailing,     ///< What is under way ends; the other ranks hear of it.
  kAbandoning,  ///< Its files are removed.
  kEnded,
};
[[nodiscard]] constexpr bool Follows(JobStage from, JobStage to) { return from < to; }

/// One save on the engine's thread, from accepted to durable or failed: its capture, its shard's writer, and the ranks'
/// agreement, each with a lifecycle of its own.
class SaveJob : public std::enable_shared_from_this<SaveJob> {
 public:
  SaveJob(EngineContext& context, std::shared_ptr<SaveTask> task);

  /// Starts it; `given_up` is the reason for a save that must only take part in the ranks' agreement, as failed.
  void Start(Status given_up);
  /// Begins the ranks' agreement: at the start, on the coordinator once it has swept.
  void NameAttempt() { coordination_->Begin(); }
  /// Enqueues copies (chunks only where `chunks`). Returns at once.
  void Advance(bool chunks);
  /// Younger saves may use the devices: every copy that reads the caller's tensors is enqueued, or the save has failed.
  [[nodiscard]] bool enqueued() const { return !running() || (capture_ != nullptr && capture_->enqueued()); }
  /// Younger saves may use the pool.
  [[nodiscard]] bool all_fed() const {
    return !running() || (capture_ != nullptr && capture_->enqueued() && capture_->all_fed());
  }
  /// What writes its shard; null once it has ended.
  [[nodiscard]] ShardWriter* writer() const { return writer_.get(); }
  /// Younger saves must not write yet: this one has writes to come, if only its header and manifest. Not so while it
  /// waits for other ranks, or for its release.
  [[nodiscard]] bool holds_disk() const { return running() && !writer_->release_by() && !coordination_->prepared(); }
  [[nodiscard]] bool waits_for_device() const { return capture_ != nullptr && capture_->waits_for_device(); }
  void OnDeviceLost(const Device& device, const Status& status);
  [[nodiscard]] bool ended() const { return stage_ == JobStage::kEnded; }
  /// How it ended.
  [[nodiscard]] const Status& outcome() const { return outcome_; }
  /// Tells those who wait for it; once it has ended, and everything else that tells of it is up to date.
  void TellWaiters() const { task_->Finish(outcome_); }
  [[nodiscard]] const std::shared_ptr<SaveTask>& task() const { return task_; }
  /// Fails it, unless its commit has begun, at the end of the checkpointer: the other ranks are waited for no longer.
  /// Whether they have committed by then is looked up on the disk.
  void Close();
  /// Takes note of SaveHandle::Cancel and Release, and of what has not come in time: a release, words of other ranks.
  void TakeWord();
  /// When TakeWord must be called, if nothing else wakes the engine.
  [[nodiscard]] Deadline wakes_at() const;

 private:
  [[nodiscard]] bool running() const { return stage_ == JobStage::kRunning; }
  [[nodiscard]] Status Closed() const;
  [[nodiscard]] Coordination::Callbacks OfRanks();
  [[nodiscard]] ShardWriter::Callbacks OfWriter();
  [[nodiscard]] Capture::Callbacks OfCapture();

  void OnLaidOut();
  void MakeHeaderIfNamed();
  void SealIfWritten();
  void OnSealed();
  void OnCommitted(Status status);
  /// Fails it, or takes note that something of a failing save has ended.
  void Fail(Status status);
  void FailIfQuiet();
  void Abandon();
  void End(Status status);

  EngineContext& context_;
  const std::shared_ptr<SaveTask> task_;
  Lifecycle<JobStage> stage_{JobStage::kRunning};
  std::shared_ptr<Coordination> coordination_;
  std::shared_ptr<ShardWriter> writer_;
  std::shared_ptr<Capture> capture_;  // Once the stream is laid out.
  bool laying_out_ = false;           // On a worker, which reads the snapshot.
  bool closing_ = false;
  Status failure_;
  Status outcome_;
};

}  // namespace cairn
