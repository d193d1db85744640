#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "engine/capture.h"
#include "engine/context.h"
#include "engine/save_task.h"
#include "format/shard_header.h"
#include "store/attempt.h"

namespace cairn {

enum class WriterStage : std::uint8_t {
  kWaiting,     ///< The attempt has no name yet, or the stream no layout.
  kPlanning,    ///< A worker makes the header.
  kReady,       ///< It may make, or take, its file.
  kBeginning,   ///< It is at it.
  kWriting,     ///< Chunks, as they come.
  kHeld,        ///< All is written; the caller has not released the commit.
  kSealing,     ///< Header, fsyncs; without other ranks the commit too.
  kSealed,      ///< The other ranks are waited for.
  kCommitting,  ///< On the coordinator, when all are prepared.
  kStopped,     ///< The save has failed: nothing more is written.
};
[[nodiscard]] constexpr bool Follows(WriterStage from, WriterStage to) {
  if (from == WriterStage::kStopped) return false;
  if (to == WriterStage::kStopped) return true;
  if (to == WriterStage::kSealing) return from == WriterStage::kWriting || from == WriterStage::kHeld;
  return to != WriterStage::kWaiting && static_cast<int>(to) == static_cast<int>(from) + 1;
}

/// The second half of a save: this rank's shard, from its first chunk to its seal, and the commit. Engine's thread
/// alone.
class ShardWriter : public std::enable_shared_from_this<ShardWriter> {
 public:
  struct Callbacks {
    std::function<void(std::shared_ptr<FilledChunk>)> written;  ///< Sum it; then SealIfWritten.
    std::function<void()> begun;                                ///< Nothing may be left to write: SealIfWritten.
    std::function<void()> sealed;                               ///< shard() is this rank's word.
    std::function<void(Status)> committed;                      ///< Or why it was not.
    std::function<void(Status)> failed;                         ///< Stop it.
    std::function<void()> quiet;                                ///< Something has ended after Stop: ask idle().
  };
  ShardWriter(EngineContext& context, SaveTask& task, Callbacks callbacks);

  /// The stream is laid out, and the attempt has its name.
  void MakeHeader(std::shared_ptr<AttemptFolder> folder);
  [[nodiscard]] bool may_begin() const { return stage_ == WriterStage::kReady; }
  /// It makes, or takes, its file.
  void Begin();
  /// It is at it, if only because it cannot be stopped.
  [[nodiscard]] bool begins() const { return attempt_ != nullptr && attempt_->beginning(); }
  [[nodiscard]] bool has_file() const { return attempt_ != nullptr && attempt_->begun(); }

  /// Takes a chunk to be written.
  void Add(std::shared_ptr<FilledChunk> chunk) { ready_.push_back(std::move(chunk)); }
  [[nodiscard]] bool HasReadyWrite() const { return stage_ == WriterStage::kWriting && !ready_.empty(); }
  void SubmitWrite();
  /// Goes on where all is captured, written, summed and released. Cancelled where the caller was faster.
  void SealIfWritten(const Capture& capture);
  /// Until when it waits for its release.
  [[nodiscard]] std::optional<Deadline> release_by() const;
  /// It takes no word of the caller's any more.
  [[nodiscard]] bool sealing() const { return *stage_ >= WriterStage::kSealing && *stage_ != WriterStage::kStopped; }
  /// This rank's shard, as its word and the manifest have it.
  [[nodiscard]] ManifestShard shard() const;
  /// All ranks' shards, and what the others add to the index; this rank's own run is added.
  void Commit(std::vector<ManifestShard> shards, std::vector<std::string> index_runs);

  /// Drops the chunks that are not under way.
  void Stop();
  /// Nothing of it is under way.
  [[nodiscard]] bool idle() const { return under_way_ == 0; }
  /// Removes what there is of the attempt, when idle: `folder` too, if there is one and it was made here.
  void Abandon(const std::shared_ptr<AttemptFolder>& folder, StatusDone done);

 private:
  /// Wraps a continuation so that it runs as a message of the engine's and counts as under way until then.
  template <typename... Args>
  std::function<void(Args...)> Later(void (ShardWriter::*then)(Args...));
  [[nodiscard]] Manifest MakeManifest(std::vector<ManifestShard> shards) const;
  struct Planned {
    Result<ShardHeaderWriter> header;
    std::string index_run;
  };
  void OnHeader(std::shared_ptr<Planned> planned);
  void OnBegun(Status status);
  void OnChunkWritten(const std::shared_ptr<FilledChunk>& chunk, const Status& status);
  void OnSealed(Status status);
  void OnCommitted(Status status);
  /// Ends a continuation: true where it is of no use any more, or has failed, which the job has been told.
  [[nodiscard]] bool Ends(const Status& status);

  EngineContext& context_;
  SaveTask& task_;
  const Callbacks callbacks_;
  Lifecycle<WriterStage> stage_{WriterStage::kWaiting};
  std::shared_ptr<AttemptFolder> folder_;
  std::optional<ShardHeaderWriter> header_;
  std::string index_run_;  // The coordinator's, of several ranks.
  std::unique_ptr<Attempt> attempt_;
  std::deque<std::shared_ptr<FilledChunk>> ready_;
  std::uint64_t written_ = 0;  // Stream bytes whose writes are complete.
  Deadline release_by_ = Deadline::Infinite();
  int under_way_ = 0;  // Continuations that will come.
};

}  // namespace cairn
