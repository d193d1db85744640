#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/capture.h"
#include "engine/context.h"
#include "engine/save_task.h"
#include "format/shard_header.h"
#include "store/attempt.h"

namespace cairn {

/// One save on the engine's thread, from accepted to durable or failed: its capture, its writes, and the ranks'
/// agreement.
///
/// Agreement (each gather has the group's deadline):
///   attempt/<n>      the coordinator names the attempt; all name their step, which must be one.
///   alike/<uuid>     only where what all must give alike differs: each rank's texts, so that it can be named.
///   prepared/<uuid>  each rank: its shard's length and header digest, or why it failed. One failure aborts all.
///   outcome/<uuid>   the coordinator: committed, or why not. Who hears nothing looks on the disk, then says unknown.
class SaveJob : public std::enable_shared_from_this<SaveJob> {
 public:
  SaveJob(EngineContext& context, std::shared_ptr<SaveTask> task);

  /// Starts it; `given_up` is the reason for a save that must only take part in the ranks' agreement, as failed.
  void Start(Status given_up);
  /// Gives the ranks the word that lets their attempts begin: at the start, or once the coordinator has swept, or where
  /// there will be none.
  void NameAttempt();
  /// Enqueues copies (chunks only where `chunks`). Returns at once.
  void Advance(bool chunks);
  /// Younger saves may use the devices: every copy that reads the caller's tensors is enqueued, or the save has failed.
  [[nodiscard]] bool enqueued() const { return failing() || (capture_ != nullptr && capture_->enqueued()); }
  /// Younger saves may use the pool.
  [[nodiscard]] bool all_fed() const {
    return failing() || (capture_ != nullptr && capture_->enqueued() && capture_->all_fed());
  }
  /// It could make, or take, the file that it writes; is at it; has it.
  [[nodiscard]] bool may_begin() const { return attempt_ != nullptr && !begins_ && !begun_ && !failing() && !ended_; }
  void Begin();
  [[nodiscard]] bool begins() const { return begins_; }
  [[nodiscard]] bool has_file() const { return begun_ && !ended_; }
  [[nodiscard]] bool HasReadyWrite() const { return begun_ && !ready_.empty() && !failing(); }
  void SubmitWrite();
  /// Younger saves must not write yet: this one has writes to come, if only its header and manifest. Not so while it
  /// waits for other ranks, or for its release.
  [[nodiscard]] bool holds_disk() const {
    return !failing() && !ended_ && !release_by_ && !(agreed_ && context_.parts.group->size() > 1);
  }
  [[nodiscard]] bool waits_for_device() const { return capture_ != nullptr && capture_->waits_for_device(); }
  void OnDeviceLost(const Device& device, const Status& status);
  [[nodiscard]] bool ended() const { return ended_; }
  /// How it ended.
  [[nodiscard]] const Status& outcome() const { return outcome_; }
  /// Tells those who wait for it; once it has ended, and everything else that tells of it is up to date.
  void TellWaiters() const { task_->Finish(outcome_); }
  [[nodiscard]] const std::shared_ptr<SaveTask>& task() const { return task_; }
  /// Fails it, unless its commit has begun, at the end of the checkpointer: the other ranks are waited for no longer.
  /// Whether they have committed by then is looked up on the disk.
  void Close();
  /// Takes note of SaveHandle::Cancel and Release, and of a release that did not come in time.
  void TakeWord();
  /// When it fails unless it has been released; nothing while it waits for something else.
  [[nodiscard]] const std::optional<Deadline>& release_by() const { return release_by_; }

 private:
  [[nodiscard]] bool failing() const { return !failure_.ok(); }
  [[nodiscard]] bool coordinator() const { return context_.parts.group->rank() == 0; }
  [[nodiscard]] Deadline GroupDeadline() const { return Deadline::In(context_.parts.options.group_deadline); }
  /// Wraps a continuation so that it runs on the engine's thread and counts as under way until then.
  template <typename... Args>
  std::function<void(Args...)> Later(void (SaveJob::*then)(Args...));
  /// Gives the ranks a word; `then` counts as awaited until it comes, and is dropped after the save's end.
  void Gather(const std::string& key, std::string word, void (SaveJob::*then)(Result<std::vector<std::string>>));
  /// The same, for who needs no answer.
  void Tell(const std::string& key, std::string word);
  void LookUp();
  [[nodiscard]] Status Closed() const;

  void OnLaidOut();
  void OnAttemptNamed(Result<std::vector<std::string>> named);
  void OnDifference(Result<std::vector<std::string>> words);
  void MakeHeader();
  void OnHeader(std::shared_ptr<Result<ShardHeaderWriter>> header);
  void OnBegun(Status status);
  void OnChunkWritten(const std::shared_ptr<FilledChunk>& chunk, const Status& status);
  void SealIfWritten();
  [[nodiscard]] ManifestShard MyShard() const;
  [[nodiscard]] Manifest MakeManifest(std::vector<ManifestShard> shards) const;
  void OnSealed(Status status);
  void OnPrepared(Result<std::vector<std::string>> prepared);
  void OnCommitted(Status status);
  void OnOutcome(Result<std::vector<std::string>> outcome);
  void OnLookedUp(Status status);

  void Fail(Status status);
  void FailIfQuiet();
  void OnFailureTold(Result<std::vector<std::string>> prepared);
  void OnAbandoned(Status status);
  void End(Status status);

  EngineContext& context_;
  const std::shared_ptr<SaveTask> task_;
  std::shared_ptr<Capture> capture_;
  std::unique_ptr<Attempt> attempt_;
  std::optional<ShardHeaderWriter> header_;
  std::string uuid_;
  std::deque<std::shared_ptr<FilledChunk>> ready_;
  Status failure_;
  Status outcome_;
  std::optional<Deadline> release_by_;
  std::uint64_t written_ = 0;  // Stream bytes whose writes are complete.
  int under_way_ = 0;          // Continuations that will come.
  int awaited_ = 0;            // Words of other ranks that will come, by the group's deadline at the latest.
  bool named_ = false;
  bool laid_out_ = false;
  bool begins_ = false;
  bool begun_ = false;
  bool sealing_ = false;
  bool agreed_ = false;  // This rank has given its word under prepared/.
  bool told_ = false;    // The failure was given to the group.
  bool closing_ = false;
  bool looking_ = false;  // On the disk, for what the coordinator did: its word is not waited for any more.
  bool ended_ = false;
};

}  // namespace cairn
