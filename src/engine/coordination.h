#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/lifecycle.h"
#include "engine/context.h"
#include "engine/save_task.h"
#include "format/manifest.h"
#include "io/io_task.h"
#include "store/attempt_folder.h"

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

/// All ranks' shards and their runs of the index, by rank; then the same of those that have kept files.
struct PreparedShards {
  std::vector<ManifestShard> shards;
  std::vector<std::string> index_runs;
};

/// The ranks' agreement on one save: steps 1 and 4 of the commit protocol (attempt.cc). For the engine's thread.
///
/// The coordinator decides, and waits for nobody until all must be prepared. <n> counts the saves of its engine:
///   attempt/<n>   announced: the save as the coordinator's ledger accepted it, or its refusal; with its step.
///   prepared/<n>  the only message of each other rank: its files' lengths and header digests, or, at once, why it
///                 fails. The first failure or mismatch fails the save for all.
///   outcome/<n>   announced: committed, or failed. A failure is announced at once and ends all writing.
/// The other ranks count no calls. Each hears all attempts in order, and a call of Save joins the next attempt of its
/// own step (SaveLine, Pairing). So a save that one rank makes alone, or leaves out, fails and shifts nothing: the next
/// save that all ranks make finds its attempt by its step. An attempt that no call joins is refused, with both steps;
/// that is the rank's message for it, so there are no more messages than otherwise. If rank 0 had given an attempt up
/// because this rank was missing, and this rank joins it too late, the call waits a little for another attempt of its
/// step, and then fails with rank 0's reason.
///
/// A drain is no call: all ranks have kept the save, and know the attempt, whose id is the <n>. The others begin it
/// when they have heard that it is announced (MemoryRoot).
///
/// The coordinator creates the attempt's folder before it announces it; the others open it. The coordinator checks each
/// shard through its own descriptor when the rank's message arrives. What is not visible is looked for (see LateName).
///
/// Deadlines: group_timeout for the attempt; half of it for looking for its folder, so that the coordinator hears of
/// it; group_timeout for the other ranks' messages and the checks of their shards, counted from when the coordinator is
/// prepared; twice that for the outcome, counted from when a rank is prepared, so that the coordinator gives up first.
/// If the group breaks, a rank watches the disk until then. A rank that knows no outcome by then renames the attempt
/// away, which decides it.
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
    /// In memory, on other ranks: the coordinator does not save it there, and this rank has not begun. It goes to the
    /// disk instead.
    std::function<void()> moved;
    /// A forbidden transition (see Lifecycle).
    std::function<void(Status)> bug;
  };
  virtual ~Coordination() = default;

  /// Announces the attempt, or waits for it. Only the first call has an effect. Not after a failure.
  virtual void Begin() = 0;
  /// Null before Begin, and on other ranks before the attempt is announced.
  [[nodiscard]] const std::shared_ptr<AttemptFolder>& folder() const { return folder_; }
  /// This rank may write and has not finished.
  [[nodiscard]] bool named() const { return stage_ == CoordinationStage::kNamed; }
  /// This rank is prepared.
  virtual void Prepare(const ManifestShard& shard, const std::optional<ManifestShard>& kept) = 0;
  /// Announces the commit's outcome. Only on the coordinator, which alone commits.
  virtual void AnnounceOutcome(const Status& /*outcome*/) {}
  /// This rank fails. Notifies the other ranks at once, unless they know.
  virtual void FailLocally(const Status& why) = 0;
  /// The checkpointer closes: stops waiting for other ranks. Reads from the disk whether they have committed. On the
  /// coordinator the save fails, because nobody else commits it.
  virtual void Close(const Status& why) = 0;
  /// The disk hangs. On a rank that is prepared or reads the outcome from the disk, true: the save ends with the
  /// outcome that the coordinator announces, or unknown. Otherwise false: the save may fail.
  [[nodiscard]] virtual bool OnDiskHangs(const Status& /*why*/) { return false; }
  /// Ends all callbacks.
  virtual void Detach() {
    if (!stage_.MoveTo(Stage::kDetached)) return;
    wakes_at_ = Deadline::Infinite();
    // A message that never comes keeps this object alive as long as the group. Do not keep the folder's descriptor too.
    folder_.reset();
  }

  /// When OnTime must be called.
  [[nodiscard]] virtual Deadline wakes_at() const { return wakes_at_; }
  virtual void OnTime() = 0;

  /// This rank has written everything and waits for the coordinator, which alone writes more.
  [[nodiscard]] virtual bool has_written() const { return false; }
  /// After a failure: the creation of the attempt's folder is over, so it may be removed.
  [[nodiscard]] bool idle() const { return stage_ == CoordinationStage::kQuiet; }

 protected:
  using Stage = CoordinationStage;
  Coordination(EngineContext& context, const SavePlan& plan, Callbacks callbacks)
      : context_(context), plan_(plan), callbacks_(std::move(callbacks)) {}

  [[nodiscard]] Group& group() const { return *context_.parts.group; }
  [[nodiscard]] std::chrono::nanoseconds timeout() const { return context_.parts.options.group_timeout; }
  [[nodiscard]] std::chrono::nanoseconds twice_the_timeout() const {
    return 2 * std::min(timeout(), std::chrono::nanoseconds::max() / 2);
  }
  [[nodiscard]] std::string Key(const char* kind) const {
    return plan_.drain ? fmt::format("{}/{}", kind, plan_.attempt) : fmt::format("{}/{}", kind, *number_);
  }
  [[nodiscard]] std::string Restored() const { return plan_.parent ? plan_.parent->attempt : std::string(); }
  /// A group deadline for waits that begin before writing; wakes_at() comes first. No save takes longer, whatever the
  /// disk: a wait that nobody ends must not stay in the group for ever.
  [[nodiscard]] Deadline WriteDeadline() const {
    return Deadline::In(std::max<std::chrono::nanoseconds>(std::chrono::hours(24), twice_the_timeout()));
  }
  /// The save has failed or ended on this rank.
  [[nodiscard]] bool over() const {
    return stage_ == Stage::kFailed || stage_ == Stage::kQuiet || stage_ == Stage::kDetached;
  }
  /// Wraps a continuation so that it runs on the engine's thread.
  template <typename Rank, typename... Args>
  std::function<void(Args...)> Later(void (Rank::*then)(Args...)) {
    return [self = std::static_pointer_cast<Rank>(shared_from_this()), then, inbox = context_.inbox](Args... args) {
      inbox->Post([self, then, ... args = std::move(args)]() mutable { ((*self).*then)(std::move(args)...); });
    };
  }
  void NameFolder(const std::string& uuid) {
    folder_ = std::make_shared<AttemptFolder>(context_.parts.root, uuid, context_.parts.options.directory_mode);
  }
  void OpenFolder(IoTask<Status> (AttemptFolder::*how)()) {
    RunTask(
        *context_.queue, (*folder_.*how)(),
        [folder = folder_, then = Later(&Coordination::OnFolderOpen)](const Status& status) { then(folder, status); });
  }
  void OnFolderOpen(std::shared_ptr<AttemptFolder> folder, Status status) {
    if (folder == folder_) OnOpened(std::move(status));  // Else it is of an earlier attempt.
  }
  virtual void OnOpened(Status status) = 0;
  void StartWriting() {
    if (!stage_.MoveTo(Stage::kNamed)) return;
    callbacks_.named();
  }
  void StopWaiting() {
    if (!stage_.MoveTo(Stage::kQuiet)) return;
    wakes_at_ = Deadline::Infinite();
  }

  EngineContext& context_;
  const SavePlan& plan_;
  const Callbacks callbacks_;
  Lifecycle<CoordinationStage> stage_{"the agreement of a save", CoordinationStage::kSilent, callbacks_.bug};
  Deadline wakes_at_ = Deadline::Infinite();
  // The coordinator's number of this save, once known; 0 for a drain.
  std::optional<std::uint64_t> number_;
  std::shared_ptr<AttemptFolder> folder_;
};

/// Rank 0's part, and another rank's.
[[nodiscard]] std::shared_ptr<Coordination> MakeCoordinator(EngineContext& context, const SavePlan& plan,
                                                            Coordination::Callbacks callbacks);
[[nodiscard]] std::shared_ptr<Coordination> MakeFollower(EngineContext& context, const SavePlan& plan,
                                                         Coordination::Callbacks callbacks);

}  // namespace cairn
