#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cairn/group.h"
#include "engine/agreement.h"
#include "engine/pairing.h"

namespace cairn {

struct EngineContext;

/// What one rank knows of all saves that its ranks agree on. On ranks other than the coordinator it hears the attempts,
/// one after the other, for the calls of Save that wait for theirs (see Pairing), and refuses those that no call joins.
///
/// An attempt is awaited without a deadline of the group's, because a wait that has ended drops its message: a late
/// attempt must be heard by the next call, or the numbers would never meet again. It ends with the group. For every
/// attempt that is refused the outcome is awaited, so that no message stays in the group; but only once the attempts
/// that were announced before it are heard, which a call may join.
///
/// For the engine's thread.
class SaveLine : public std::enable_shared_from_this<SaveLine> {
 public:
  /// For one call; at most one of them is called, once.
  struct Callbacks {
    /// The call joins this attempt, and owes the coordinator its message.
    std::function<void(std::uint64_t number, const AttemptProposal& attempt)> joined;
    std::function<void(Status)> failed;
    /// The coordinator does not save it here: see AnnounceOff and AnnounceToDisk.
    std::function<void()> moved;
  };
  explicit SaveLine(EngineContext& context);

  /// A call of Save waits for its attempt. Returns its id.
  std::uint64_t Call(std::uint64_t step, Callbacks callbacks);
  /// The call's attempt had failed before this rank had begun: see Pairing.
  void CallAgain(std::uint64_t call, std::uint64_t step, const Status& why, Callbacks callbacks);
  /// A call of Save that was given up before it began.
  void CallGivenUp(std::uint64_t step, const Status& why);
  /// The call fails on this rank. The coordinator hears `why` once it has announced the attempt.
  void GiveUp(std::uint64_t call, const Status& why);

  [[nodiscard]] Deadline wakes_at() const { return off_ ? Deadline::Infinite() : Deadline::At(pairing_.wakes_at()); }
  void OnTime();

  /// On the coordinator: the number of its next save.
  [[nodiscard]] std::uint64_t NextNumber() { return next_++; }
  /// On the coordinator: no save follows. The calls that wait for one, and all later ones, hear that instead.
  void AnnounceOff();
  [[nodiscard]] bool off() const { return off_; }
  /// On the coordinator, in memory: it gives this step to the disk alone. The others' calls of it hear that.
  void AnnounceToDisk(std::uint64_t step);

  /// On the coordinator: this rank has taken part in the save of this step.
  void Heard(int rank, std::uint64_t step);
  /// The step that Heard was told of last, for messages.
  [[nodiscard]] std::optional<std::uint64_t> LastStep(int rank) const;

 private:
  [[nodiscard]] Group& group() const;
  void Listen();
  void OnAttempt(const Result<std::string>& heard);
  void OnOutcome(std::uint64_t number, const Result<std::string>& heard);
  void Refuse(std::uint64_t number, const Status& why);
  void AwaitOutcomes();
  void Settle();
  void MoveAll();

  EngineContext& context_;
  Pairing pairing_;
  std::map<std::uint64_t, Callbacks> callbacks_;
  // The next attempt, and whether it is awaited.
  std::uint64_t next_ = 0;
  // See AnnounceOff.
  bool off_ = false;
  bool listening_ = false;
  bool settling_ = false;
  // Refused attempts whose outcome is not awaited yet.
  std::vector<std::uint64_t> refused_;
  // By rank.
  std::vector<std::optional<std::uint64_t>> last_steps_;
};

}  // namespace cairn
