#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "engine/agreement.h"
#include "engine/context.h"
#include "engine/save_task.h"
#include "format/manifest.h"
#include "store/attempt_folder.h"
#include "store/shard_check.h"

namespace cairn {

/// Where one rank stands in the agreement on one save.
enum class CoordinationStage : std::uint8_t {
  kSilent,      ///< Nothing is announced, and nothing awaited.
  kNaming,      ///< Not on the coordinator: waits for the attempt.
  kDiffers,     ///< Not on the coordinator: holds something else than it, has said so, and waits for the verdict.
  kEntering,    ///< The coordinator makes the attempt's folder, another rank opens it.
  kNamed,       ///< The attempt is announced: this rank writes.
  kPrepared,    ///< Its shard is sealed: waits for the others' words, or for the outcome.
  kCommitting,  ///< On the coordinator: all are prepared.
  kLooking,     ///< Not on the coordinator: looks on the disk for what the coordinator did, or gives the attempt up.
  kFailed,      ///< On the coordinator: has said that it fails; the attempt's folder is still being made.
  kQuiet,       ///< The save has failed, or is decided: nothing is waited for any more.
  kDetached,    ///< The save has ended: words that come are dropped.
};
[[nodiscard]] constexpr bool Follows(CoordinationStage from, CoordinationStage to) {
  using Stage = CoordinationStage;
  switch (to) {
    case Stage::kSilent:
      return false;
    case Stage::kNaming:
      return from == Stage::kSilent;
    case Stage::kDiffers:
      return from == Stage::kNaming;
    case Stage::kEntering:
      return from == Stage::kSilent || from == Stage::kNaming;
    case Stage::kNamed:
      return from == Stage::kSilent || from == Stage::kEntering;
    case Stage::kPrepared:
      return from == Stage::kNamed;
    case Stage::kFailed:
      return from == Stage::kEntering;
    case Stage::kCommitting:
    case Stage::kLooking:
      return from == Stage::kPrepared;
    case Stage::kQuiet:
    case Stage::kDetached:
      return from != Stage::kDetached;
  }
  return false;
}

/// All ranks' shards, and what each of the others adds to the index: by rank.
struct PreparedShards {
  std::vector<ManifestShard> shards;
  std::vector<std::string> index_runs;
};

/// What the ranks agree on for one save, the n-th: steps 1 and 4 of the commit protocol (attempt.cc). Engine's thread
/// alone. The coordinator decides, and waits for nobody before all have to be prepared:
///   attempt/<n>   announced: the save as the coordinator's ledger accepted it, or its refusal.
///   prepared/<n>  each other rank's only word: its shard's length and header digest; or why it fails, sent at once.
///                 The first failure or mismatch fails the save for all.
///   outcome/<n>   announced: committed, or failed; a failure comes as soon as it is known, and ends all writing.
/// The coordinator makes the attempt's folder before it announces it; the others open it. Each shard is looked at
/// through the coordinator's descriptor as its rank's word comes.
/// How long is waited: for the attempt the group's deadline; for the other ranks' words, and the looks at their shards,
/// the same, from when the coordinator is prepared; for the outcome twice that from when a rank is prepared, so that
/// the coordinator is the first to give up. Whose group is broken looks on the disk until then; who has heard nothing
/// then takes the attempt's name away, which tells for certain what became of it.
class Coordination : public std::enable_shared_from_this<Coordination> {
 public:
  struct Callbacks {
    std::function<void()> named;                 ///< The attempt's folder() is open.
    std::function<void(PreparedShards)> commit;  ///< On the coordinator: all are prepared.
    std::function<void(Status)> failed;          ///< The ranks do not agree, or one of them failed.
    std::function<void(Status)> ended;           ///< Committed, or nobody knows.
    std::function<void()> quiet;                 ///< After a failure: idle() has become true.
  };
  Coordination(EngineContext& context, const SavePlan& plan, Callbacks callbacks);

  /// Announces the attempt, or waits for it. The first call counts; none after a failure.
  void Begin();
  /// The attempt's; null before Begin, and on other ranks before the attempt is announced.
  [[nodiscard]] const std::shared_ptr<AttemptFolder>& folder() const { return folder_; }
  /// This rank may write, and has not written all.
  [[nodiscard]] bool named() const { return stage_ == CoordinationStage::kNamed; }
  /// This rank is prepared.
  void Prepare(const ManifestShard& shard);
  /// On the coordinator: what became of the commit.
  void TellOutcome(const Status& outcome);
  /// This rank fails: the others hear it at once. Nothing where they know already.
  void TellFailure(const Status& why);
  /// The checkpointer closes: the other ranks are waited for no longer. Whether they have committed by then is looked
  /// up on the disk; on the coordinator, without whose commit they can do nothing, the save fails.
  void Close(const Status& why);
  /// No callback comes any more.
  void Detach();

  /// When OnTime must be called, if nothing else wakes the engine.
  [[nodiscard]] Deadline wakes_at() const { return wakes_at_; }
  void OnTime();

  /// This rank has written all, and waits for others.
  [[nodiscard]] bool prepared() const;
  /// After a failure: the attempt's folder is made, or never will be, so that it may go.
  [[nodiscard]] bool idle() const { return stage_ == CoordinationStage::kQuiet; }

 private:
  using Heard = Result<std::string>;
  [[nodiscard]] Group& group() const { return *context_.parts.group; }
  [[nodiscard]] bool coordinator() const { return group().rank() == 0; }
  [[nodiscard]] bool alone() const { return group().size() == 1; }
  [[nodiscard]] std::string Key(const char* kind) const;
  [[nodiscard]] std::string Restored() const;
  /// The group's deadline for waits that begin with the writing: wakes_at() comes first.
  [[nodiscard]] Deadline WhileItWrites() const;
  /// Wraps a continuation so that it runs as a message of the engine's.
  template <typename... Args>
  std::function<void(Args...)> Later(void (Coordination::*then)(Args...));
  void NameFolder(const std::string& uuid);
  void Enter(const std::string& uuid, IoTask<Status> (AttemptFolder::*how)());
  void OnEntered(Status status);
  /// What this rank says of its failure, if it has not spoken, or nobody would hear.
  void SayFailure(const Status& why);
  void BeQuiet();

  // The coordinator.
  void AnnounceAttempt();
  void OnWord(int rank, std::string text);
  void OnAllHeard(Status status);
  [[nodiscard]] Status TakeWord(int rank, const std::string& text);
  void OnChecked(std::size_t rank, Result<std::string> run);
  [[nodiscard]] Status Missing() const;
  void FailForAll(const Status& why);
  void CommitIfPrepared();

  // The other ranks.
  void AwaitAttempt();
  void OnAttempt(Heard heard);
  void Join(const AttemptWord& attempt);
  void SendFailure(const Status& why);
  void OnOutcome(Heard heard);
  void OnUnheard(const Status& why);
  void LookUp();
  void OnLookedUp(Status found);
  void OnAborted(Status outcome);

  struct PreparedShard {
    ManifestShard shard;
    bool checked = false;
    std::string index_run = {};
  };

  EngineContext& context_;
  const SavePlan& plan_;
  const Callbacks callbacks_;
  Lifecycle<CoordinationStage> stage_{CoordinationStage::kSilent};
  Deadline wakes_at_ = Deadline::Infinite();
  std::shared_ptr<AttemptFolder> folder_;
  // The coordinator's: by rank, of those that are prepared.
  std::vector<std::optional<PreparedShard>> shards_;
  std::uint64_t index_bytes_ = 0;  // What the runs take.
  std::shared_ptr<ShardChecks> checks_;
  // Where the disk is looked at again and again: until when, and after which pause; then the attempt is given up,
  // unless this rank is closing and so may know less than the others.
  Deadline look_until_ = Deadline::Infinite();
  std::chrono::nanoseconds pause_;
  bool may_abort_ = true;
};

}  // namespace cairn
