#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "engine/context.h"
#include "engine/save_task.h"
#include "format/manifest.h"

namespace cairn {

/// Where one rank stands in the agreement on one save.
enum class CoordinationStage : std::uint8_t {
  kSilent,     ///< It has given no word.
  kNaming,     ///< Waits for the attempt's name.
  kComparing,  ///< Some ranks give unlike what all must give alike: finds out what it is.
  kNamed,      ///< The attempt has its name: this rank writes.
  kPrepared,   ///< It has given its word, and waits for the others'.
  kDecided,    ///< All are prepared: the coordinator commits, the others wait for the outcome.
  kLooking,    ///< Looks on the disk for what the coordinator did: its word is not waited for any more.
  kFailed,     ///< It has told the others that the save fails.
  kDetached,   ///< The save has ended: words that come are dropped.
};
[[nodiscard]] constexpr bool Follows(CoordinationStage from, CoordinationStage to) {
  using Stage = CoordinationStage;
  switch (to) {
    case Stage::kSilent:
      return false;
    case Stage::kNaming:
      return from == Stage::kSilent;
    case Stage::kComparing:
    case Stage::kNamed:
      return from == Stage::kNaming;
    case Stage::kPrepared:
      return from == Stage::kNamed;
    case Stage::kDecided:
      return from == Stage::kPrepared;
    case Stage::kLooking:
      return from == Stage::kPrepared || from == Stage::kDecided;
    case Stage::kFailed:
      return from == Stage::kNamed || from == Stage::kPrepared || from == Stage::kDecided;
    case Stage::kDetached:
      return true;
  }
  return false;
}

/// What the ranks agree on for one save: step 4 of the commit protocol (attempt.cc). Engine's thread alone. Each gather
/// has the group's deadline:
///   attempt/<n>      the coordinator names the attempt; all name their step, which must be one.
///   alike/<uuid>     only where what all must give alike differs: each rank's texts, so that it can be named.
///   prepared/<uuid>  each rank: its shard's length and header digest, or why it failed. One failure aborts all.
///   outcome/<uuid>   the coordinator: committed, or why not. Who hears nothing looks on the disk, then says unknown.
class Coordination : public std::enable_shared_from_this<Coordination> {
 public:
  struct Callbacks {
    std::function<void()> named;                             ///< uuid() is known.
    std::function<void(std::vector<ManifestShard>)> commit;  ///< On the coordinator: all are prepared.
    std::function<void(Status)> failed;                      ///< The ranks do not agree, or one of them failed.
    std::function<void(Status)> ended;                       ///< Committed, or nobody knows.
    std::function<void()> quiet;                             ///< A word came after this rank failed: ask idle().
  };
  Coordination(EngineContext& context, const SavePlan& plan, Callbacks callbacks);

  /// Gives the ranks the word that lets their attempts begin. The first call counts.
  void NameAttempt();
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  /// This rank is prepared.
  void Prepare(const ManifestShard& shard);
  /// On the coordinator: what became of the commit.
  void TellOutcome(const Status& outcome);
  /// This rank fails: the others hear it, where they wait for its word.
  void TellFailure(const Status& why);
  /// The checkpointer closes: the other ranks are waited for no longer. Whether they have committed by then is looked
  /// up on the disk; on the coordinator, without whose commit they can do nothing, the save fails.
  void Close(const Status& why);
  /// No callback comes any more.
  void Detach() { stage_.MoveTo(CoordinationStage::kDetached); }

  /// It has given its word that it is prepared, or the ranks have got further.
  [[nodiscard]] bool prepared() const;
  /// No word is awaited, and the disk is not asked.
  [[nodiscard]] bool idle() const { return awaited_ == 0; }

 private:
  using Words = Result<std::vector<std::string>>;
  [[nodiscard]] bool coordinator() const { return context_.parts.group->rank() == 0; }
  /// Gives the ranks a word; `then` counts as awaited until it comes, and is dropped after Detach.
  void Gather(const std::string& key, std::string word, void (Coordination::*then)(Words));
  void LookUp();
  void OnNamed(Words words);
  void OnCompared(Words words);
  void OnPrepared(Words words);
  void OnOutcome(Words words);
  void OnFailureTold(Words words);
  void OnLookedUp(const Status& status);

  EngineContext& context_;
  const SavePlan& plan_;
  const Callbacks callbacks_;
  Lifecycle<CoordinationStage> stage_{CoordinationStage::kSilent};
  std::string uuid_;
  int awaited_ = 0;  // Words that will come, by the group's deadline at the latest.
};

}  // namespace cairn
