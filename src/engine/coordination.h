#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "engine/agreement.h"
#include "engine/context.h"
#include "engine/save_line.h"
#include "engine/save_task.h"
#include "format/manifest.h"
#include "store/attempt_folder.h"
#include "store/late_name.h"
#include "store/shard_check.h"

namespace cairn {

/// One rank's state in the agreement on one save.
enum class CoordinationStage : std::uint8_t {
  /// Nothing announced or awaited yet.
  kSilent,
  /// Other ranks: waiting for the attempt.
  kNaming,
  /// Other ranks: has sent its message, that its values differ from the coordinator's or that the attempt is not there,
  /// and waits for the outcome, which has the reason.
  kAnswered,
  /// The coordinator creates the attempt's folder; another rank opens it.
  kEntering,
  /// The attempt is announced; this rank writes.
  kNamed,
  /// The shard is sealed; waiting for the others' messages or for the outcome.
  kPrepared,
  /// Coordinator: all ranks are prepared.
  kCommitting,
  /// Other ranks: reads the outcome from the disk, or gives the attempt up.
  kLooking,
  /// Coordinator: has announced its failure while the attempt's folder is still being created.
  kFailed,
  /// The save has failed or is decided; nothing is awaited any more.
  kQuiet,
  /// The save has ended; messages are dropped.
  kDetached,
};
[[nodiscard]] constexpr bool Follows(CoordinationStage from, CoordinationStage to) {
  using Stage = CoordinationStage;
  switch (to) {
    case Stage::kSilent:
      return false;
    case Stage::kNaming:
      return from == Stage::kSilent || from == Stage::kEntering || from == Stage::kAnswered;
    case Stage::kAnswered:
      return from == Stage::kNaming || from == Stage::kEntering;
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

/// All ranks' shards and their runs of the index, by rank.
struct PreparedShards {
  std::vector<ManifestShard> shards;
  std::vector<std::string> index_runs;
};

/// The ranks' agreement on one save: steps 1 and 4 of the commit protocol (attempt.cc). For the engine's thread.
///
/// The coordinator decides, and waits for nobody until all must be prepared. <n> counts its calls of Save:
///   attempt/<n>   announced: the save as the coordinator's ledger accepted it, or its refusal; with its step.
///   prepared/<n>  the only message of each other rank: its shard's length and header digest, or, at once, why it
///                 fails. The first failure or mismatch fails the save for all.
///   outcome/<n>   announced: committed, or failed. A failure is announced at once and ends all writing.
/// The other ranks count no calls. Each hears all attempts in order, and a call of Save joins the next attempt of its
/// own step (SaveLine, Pairing). So a save that one rank makes alone, or leaves out, fails and shifts nothing: the next
/// save that all ranks make finds its attempt by its step. An attempt that no call joins is refused, with both steps;
/// that is the rank's message for it, so there are no more messages than otherwise. If rank 0 had given an attempt up
/// because this rank was missing, and this rank joins it too late, the call waits a little for another attempt of its
/// step, and then fails with rank 0's reason.
///
/// The coordinator creates the attempt's folder before it announces it; the others open it. The coordinator checks each
/// shard through its own descriptor when the rank's message arrives. What is not visible is looked for (see LateName).
///
/// Deadlines: group_timeout for the attempt; the same for looking for its folder; the same for the other ranks'
/// messages and the checks of their shards, counted from when the coordinator is prepared; twice that for the outcome,
/// counted from when a rank is prepared, so that the coordinator gives up first. If the group breaks, a rank watches
/// the disk until then. A rank that knows no outcome by then renames the attempt away, which decides it.
class Coordination : public std::enable_shared_from_this<Coordination> {
 public:
  struct Callbacks {
    /// The attempt's folder() is open.
    std::function<void()> named;
    /// Coordinator: all ranks are prepared.
    std::function<void(PreparedShards)> commit;
    /// The ranks do not agree, or one of them failed.
    std::function<void(Status)> failed;
    /// Committed, or the outcome is unknown.
    std::function<void(Status)> ended;
    /// After a failure: idle() has become true.
    std::function<void()> quiet;
    /// A forbidden transition (see Lifecycle).
    std::function<void(Status)> bug;
  };
  Coordination(EngineContext& context, const SavePlan& plan, Callbacks callbacks);

  /// Announces the attempt, or waits for it. Only the first call has an effect. Not after a failure.
  void Begin();
  /// Null before Begin, and on other ranks before the attempt is announced.
  [[nodiscard]] const std::shared_ptr<AttemptFolder>& folder() const { return folder_; }
  /// This rank may write and has not finished.
  [[nodiscard]] bool named() const { return stage_ == CoordinationStage::kNamed; }
  /// This rank is prepared.
  void Prepare(const ManifestShard& shard);
  /// Coordinator: announces the commit's outcome.
  void AnnounceOutcome(const Status& outcome);
  /// This rank fails. Notifies the other ranks at once, unless they know.
  void FailLocally(const Status& why);
  /// The checkpointer closes: stops waiting for other ranks. Reads from the disk whether they have committed. On the
  /// coordinator the save fails, because nobody else commits it.
  void Close(const Status& why);
  /// The disk hangs. On a rank that is prepared or reads the outcome from the disk, true: the save ends with the
  /// outcome that the coordinator announces, or unknown. Otherwise false: the save may fail.
  [[nodiscard]] bool OnDiskHangs(const Status& why);
  /// Ends all callbacks.
  void Detach();

  /// When OnTime must be called.
  [[nodiscard]] Deadline wakes_at() const;
  void OnTime();

  /// This rank has written everything and waits for the coordinator, which alone writes more.
  [[nodiscard]] bool has_written() const { return !coordinator() && prepared(); }
  /// After a failure: the creation of the attempt's folder is over, so it may be removed.
  [[nodiscard]] bool idle() const { return stage_ == CoordinationStage::kQuiet; }

 private:
  using Stage = CoordinationStage;
  using Heard = Result<std::string>;
  [[nodiscard]] Group& group() const { return *context_.parts.group; }
  [[nodiscard]] bool coordinator() const { return group().rank() == 0; }
  [[nodiscard]] bool prepared() const;
  [[nodiscard]] bool alone() const { return group().size() == 1; }
  [[nodiscard]] std::string Key(const char* kind) const;
  [[nodiscard]] std::string Restored() const;
  /// A group deadline for waits that begin before writing; wakes_at() comes first.
  [[nodiscard]] Deadline WriteDeadline() const;
  /// Wraps a continuation so that it runs on the engine's thread.
  template <typename... Args>
  std::function<void(Args...)> Later(void (Coordination::*then)(Args...));
  void NameFolder(const std::string& uuid);
  void OpenFolder(const std::string& uuid, IoTask<Status> (AttemptFolder::*how)());
  void RunOpening(IoTask<Status> (AttemptFolder::*how)());
  void OnFolderOpen(std::shared_ptr<AttemptFolder> folder, Status status);
  /// Notifies the other ranks of a failure, unless this rank has already sent its message.
  void NotifyRanksOfFailure(const Status& why);
  void StopWaiting();

  // On the coordinator.
  void AnnounceAttempt();
  void OnPrepared(int rank, std::string text);
  void OnCollected(Status status);
  [[nodiscard]] Status HandlePrepared(int rank, const std::string& text);
  void OnChecked(std::size_t rank, Result<std::string> run);
  [[nodiscard]] Status Missing() const;
  void FailForAll(const Status& why);
  void CommitIfPrepared();

  // On the other ranks.
  void AwaitAttempt();
  void Join(std::uint64_t number, const AttemptProposal& attempt);
  void JoinAnother(const Status& why);
  [[nodiscard]] SaveLine::Callbacks LineCallbacks();
  void AnswerThat(const PreparedMessage& message, const Status& why);
  void OnFolderNotFound();
  void SendFailure(const Status& why);
  void OnOutcome(std::uint64_t number, Heard heard);
  void OnNoOutcome(const Status& why);
  void CheckDisk();
  void OnDiskChecked(Status found);
  void OnAborted(Status outcome);

  struct PreparedShard {
    ManifestShard shard;
    bool checked = false;
    std::string index_run = {};
  };

  EngineContext& context_;
  const SavePlan& plan_;
  const Callbacks callbacks_;
  Lifecycle<CoordinationStage> stage_{"the agreement of a save", CoordinationStage::kSilent, callbacks_.bug};
  Deadline wakes_at_ = Deadline::Infinite();
  // The coordinator's number of this save, once known.
  std::optional<std::uint64_t> number_;
  // Other ranks: the call in the line, and what it has answered unless its values differ.
  std::uint64_t call_ = 0;
  Status answered_;
  std::shared_ptr<AttemptFolder> folder_;
  // Other ranks: the folder was not found.
  std::optional<LateName> late_folder_;
  // Coordinator: by rank, once prepared.
  std::vector<std::optional<PreparedShard>> shards_;
  // Total size of the index runs.
  std::uint64_t index_bytes_ = 0;
  std::shared_ptr<ShardChecks> checks_;
  // How long and how often to look at the disk. Then the attempt is given up, unless this rank is closing: it may have
  // missed messages.
  Deadline look_until_ = Deadline::Infinite();
  std::chrono::nanoseconds pause_;
  bool may_abort_ = true;
};

}  // namespace cairn
