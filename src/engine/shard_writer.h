#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "engine/chunk_source.h"
#include "engine/context.h"
#include "engine/kept_comparison.h"
#include "engine/save_task.h"
#include "format/shard_header.h"
#include "store/attempt.h"
#include "store/mapped_file.h"

namespace cairn {

enum class WriterStage : std::uint8_t {
  /// For the attempt's name and the stream's layout.
  kWaiting,
  /// A worker makes the header.
  kPlanning,
  /// It may begin its file.
  kReady,
  /// It creates its file, or takes over a spare.
  kBeginning,
  /// Writes chunks as they come.
  kWriting,
  /// Everything is written; the caller has not released the commit.
  kHeld,
  /// Header and fsyncs; with a single rank the commit too.
  kSealing,
  /// Waits for the other ranks.
  kSealed,
  /// Coordinator: all ranks are prepared.
  kCommitting,
  /// The save has failed: nothing more is written.
  kStopped,
};
[[nodiscard]] constexpr bool Follows(WriterStage from, WriterStage to) {
  if (from == WriterStage::kStopped) return false;
  if (to == WriterStage::kStopped) return true;
  if (to == WriterStage::kReady && from == WriterStage::kBeginning) return true;  // Once there is room.
  if (to == WriterStage::kSealing) return from == WriterStage::kWriting || from == WriterStage::kHeld;
  return to != WriterStage::kWaiting && static_cast<int>(to) == static_cast<int>(from) + 1;
}

/// The second half of a save: this rank's shard, from the first chunk to the seal, and the commit. For the engine's
/// thread.
class ShardWriter : public std::enable_shared_from_this<ShardWriter> {
 public:
  struct Callbacks {
    /// Call SealIfWritten: there may be nothing to write.
    std::function<void()> begun;
    /// shard() is ready for this rank's message.
    std::function<void()> sealed;
    /// With Ok, or why it was not committed.
    std::function<void(Status)> committed;
    /// Call Stop.
    std::function<void(Status)> failed;
    /// An operation ended after Stop: check idle().
    std::function<void()> quiet;
    /// A forbidden transition (see Lifecycle).
    std::function<void(Status)> bug;
  };
  ShardWriter(EngineContext& context, SaveTask& task, Callbacks callbacks);

  /// Call it when the stream is laid out, before the functions below. `source` lives until Stop, or the end. `before`
  /// is what the snapshot's choice has looked at; null if nothing.
  void Expect(ChunkSource& source, std::shared_ptr<KeptFile> before);
  /// The attempt has its name.
  void MakeHeader(std::shared_ptr<AttemptFolder> folder);
  /// It may begin, once there is room: its file, or, after that, a kept file in the place of the one it has linked.
  [[nodiscard]] bool is_ready() const {
    return stage_ == WriterStage::kReady || (stage_ == WriterStage::kWriting && renewal_ == Renewal::kWanted);
  }
  /// Creates its file, or takes over a spare. If the disk is full, a rank alone may begin once more when what is being
  /// removed, and what older saves let go, has made room.
  void Begin();
  /// Where its stream is mapped, from kWriting on, in memory only: see Capture::CopyInto.
  [[nodiscard]] std::byte* stream() const {
    return mapping_ == nullptr ? nullptr : mapping_->data() + header_->data_begin();
  }
  [[nodiscard]] bool awaits_room() const { return awaits_room_; }
  /// Looks whether it may begin once more. Call it before awaits_room.
  void PollRoom();
  /// When to do so though nothing has happened.
  [[nodiscard]] Deadline polls_room_at() const {
    if (awaits_slot_) return looks_at_;
    return awaits_room_ && waits_for_held() ? held_by_ : Deadline::Infinite();
  }
  /// Whether an older save that waits for its caller counts as one that makes room: for a while only.
  [[nodiscard]] bool waits_for_held() const { return !held_by_.passed(); }
  /// Begin is in progress, even if the save has failed meanwhile.
  [[nodiscard]] bool begins() const {
    return (attempt_ != nullptr && attempt_->beginning()) || renewal_ == Renewal::kRunning;
  }
  [[nodiscard]] bool has_file() const { return attempt_ != nullptr && attempt_->begun(); }

  void Add(std::shared_ptr<FilledChunk> chunk);
  [[nodiscard]] bool HasReadyWrite() const { return stage_ == WriterStage::kWriting && !ready_.empty(); }
  void SubmitWrite();
  /// Continues once everything is captured, written, checksummed and released. Fails if the caller has cancelled.
  void SealIfWritten();
  /// The deadline of its release, while it waits for that.
  [[nodiscard]] std::optional<Deadline> release_by() const;
  /// The caller can no longer cancel or release it.
  [[nodiscard]] bool sealing() const { return *stage_ >= WriterStage::kSealing && *stage_ != WriterStage::kStopped; }
  /// This rank's shard, for its message and the manifest.
  [[nodiscard]] ManifestShard shard() const;
  /// Its kept file, if it has one.
  [[nodiscard]] std::optional<ManifestShard> kept_shard() const;
  /// Takes all ranks' shards, then their kept files, and the others' index runs; adds this rank's. Like the commit of a
  /// rank alone, it waits until the line of the save is recorded.
  void Commit(std::vector<ManifestShard> shards, std::vector<std::string> index_runs);

  /// Committed: later saves may link its kept file.
  void RememberKept();
  /// Committed: in memory, the snapshot reads the shard from now on.
  void HandOver();
  /// They may not, because its tensors may change before it is committed.
  void ForgetKept() { forgets_kept_ = true; }

  /// What the checkpoint is marked with.
  [[nodiscard]] NonFinite nonfinite() const { return nonfinite_; }
  /// See CheckpointInfo. From Commit on.
  [[nodiscard]] Frozen frozen() const { return frozen_; }

  /// A commit in progress waits for no reader any more.
  void Hurry() {
    if (attempt_ != nullptr) attempt_->Hurry();
  }
  /// Nothing is written or committed any more, though the disk answers later. False if its commit's rename has been
  /// submitted.
  [[nodiscard]] bool GiveUp(const Status& why) { return attempt_ == nullptr || attempt_->GiveUp(why); }
  /// Committed; what it replaced is being removed.
  [[nodiscard]] bool durable() const { return attempt_ != nullptr && attempt_->durable(); }
  /// Drops chunks that are not being written.
  void Stop();
  /// Nothing is in flight.
  [[nodiscard]] bool idle() const { return in_flight_ == 0; }
  /// Removes the attempt, when idle: also `folder`, if it was made here.
  void Abandon(const std::shared_ptr<AttemptFolder>& folder, StatusDone done);

 private:
  using Stage = WriterStage;
  /// Of a kept file that was to be linked, until a chunk was another.
  enum class Renewal : std::uint8_t { kNone, kWanted, kRunning, kDone };

  /// Wraps a continuation so that it runs on the engine's thread and counts as in flight until then.
  template <typename... Args>
  std::function<void(Args...)> Later(void (ShardWriter::*then)(Args...));
  [[nodiscard]] Manifest MakeManifest(std::vector<ManifestShard> shards) const;
  struct Planned {
    Result<ShardHeaderWriter> header;
    std::string index_run;
    /// Of a kept file that is written.
    std::optional<Result<ShardHeaderWriter>> kept_header;
    std::string kept_index_run;
  };
  [[nodiscard]] std::optional<KeptSpec> SpecOfKept();
  void MakeAttempt();
  /// A chunk of what is frozen, and its sums.
  void OnSummed(std::shared_ptr<FilledChunk> chunk, std::span<const std::uint32_t> sums);
  /// It is not as in the file of before, or another is not.
  void AddKept(std::shared_ptr<FilledChunk> chunk);
  void OnRenewed(Status status);
  [[nodiscard]] bool writes_kept() const { return kept_ != nullptr && kept_ == own_kept_; }
  /// There is no space for what it begins. False if it has begun again before, or if nothing will make room.
  [[nodiscard]] bool TriesAgain();
  void OnHeader(std::shared_ptr<Planned> planned);
  void OnBegun(Status status);
  void SetSums(const StreamSums& sums);
  /// Of what was copied to memory before.
  [[nodiscard]] Status CheckUnchanged(const StreamSums& sums) const;
  /// The next save writes what is frozen anew.
  void ForgetDamagedKept();
  /// Says if what is frozen has changed all the same, and since when.
  void Confirm();
  void OnMarked(const Status& status);
  void Seal();
  void OnChunkWritten(const std::shared_ptr<FilledChunk>& chunk, const Status& status);
  void OnSealed(Status status);
  /// The commit, once the save's line is on the disk: at once, if the opening or an earlier save has put it there.
  void BeginCommit();
  void OnLineRecorded(Status status);
  void OnCommitted(Status status);
  /// True if a continuation must stop: the writer is stopped, or the status is an error, which it reports.
  [[nodiscard]] bool Ends(const Status& status);

  EngineContext& context_;
  SaveTask& task_;
  const Callbacks callbacks_;
  Lifecycle<WriterStage> stage_{"the shard of a save", WriterStage::kWaiting, callbacks_.bug};
  std::shared_ptr<AttemptFolder> folder_;
  ChunkSource* source_ = nullptr;
  std::optional<ShardHeaderWriter> header_;
  // The kept file: an earlier save's, or the one that this save writes.
  std::shared_ptr<KeptFile> kept_;
  // That one, if it writes one, or may have to.
  std::shared_ptr<KeptFile> own_kept_;
  std::optional<ShardHeaderWriter> kept_header_;
  // Of what it links only if it has not changed.
  std::optional<KeptComparison> comparison_;
  Renewal renewal_ = Renewal::kNone;
  // For that: chunks of the file.
  std::vector<std::shared_ptr<FilledChunk>> changed_;
  // What that one should be the same as, if anything.
  std::shared_ptr<KeptFile> confirmed_;
  bool forgets_kept_ = false;
  // Only on the coordinator of several ranks.
  std::string index_run_;
  // What BeginCommit commits. With a rank alone no run.
  std::vector<ManifestShard> shards_;
  std::vector<std::string> index_runs_;
  std::unique_ptr<Attempt> attempt_;
  // Of the shard, in memory; and its checksums, once sealing begins.
  std::shared_ptr<MappedFile> mapping_;
  std::vector<std::uint32_t> sums_;
  // There was no space for its file: it begins once more, when nothing makes room any more.
  bool tries_again_ = false;
  bool awaits_room_ = false;
  // On another rank than the coordinator, in memory: which slots become free is the coordinator's doing, so this one
  // looks again, until `slot_by_`.
  bool awaits_slot_ = false;
  Deadline looks_at_ = Deadline::Infinite();
  std::optional<Deadline> slot_by_;
  // Something made room when its Begin was called: there may be room by now.
  bool made_room_ = false;
  Deadline held_by_ = Deadline::Infinite();
  std::deque<std::shared_ptr<FilledChunk>> ready_;
  // Of this rank's tensors, once sealing begins; of all ranks', from Commit on.
  NonFinite nonfinite_ = NonFinite::kNone;
  Frozen frozen_ = Frozen::kNone;
  // Stream bytes whose writes are complete.
  std::uint64_t written_ = 0;
  Deadline release_by_ = Deadline::Infinite();
  // Pending continuations.
  int in_flight_ = 0;
};

}  // namespace cairn
