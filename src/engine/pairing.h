#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "cairn/options.h"
#include "cairn/status.h"
#include "engine/agreement.h"

namespace cairn {

/// Which call of Save on this rank, not the coordinator, belongs to which attempt of the coordinator. Pure: the caller
/// says what time it is, and does what Settle returns.
///
/// The coordinator numbers its attempts and announces each with its step. This rank counts nothing: calls and attempts
/// are two lines, each in its order, and the first attempt and the first call of the same step are a pair. So a call
/// that one side made alone shifts nothing:
///   - What stands before a pair is passed over: the other side did not call it. A call fails, an attempt is refused;
///     both steps are named.
///   - If attempts and calls wait but no two of them have the same step, the ranks save different steps: the attempt is
///     refused. If that is why it fails, and it had not failed before, this rank's calls fail with it.
///   - A call that was given up or cancelled keeps its place, and fails the attempt of its step at once.
///   - A call that waited in vain (its deadline, or different steps) has ended, and so has an attempt that failed
///     because this rank was missing. Its counterpart may be late, or be the next call of the same step: it waits for
///     another one, but only kPatience, and then fails with the same reason.
///   - What failed by itself (a call that was given up, a save that the coordinator refused) may be the counterpart of
///     what waits here with another step: that waits kPatience for its own, and then fails with both steps. With
///     kAnyStep it surely is.
class Pairing {
 public:
  using TimePoint = Deadline::Clock::time_point;
  static constexpr std::chrono::seconds kPatience{5};
  /// Of what failed by itself, if nobody knows its step.
  static constexpr std::uint64_t kAnyStep = std::numeric_limits<std::uint64_t>::max();
  /// Calls or attempts that have ended and are remembered.
  static constexpr std::size_t kRemembered = 64;

  struct Answer {
    enum class Kind : std::uint8_t {
      /// The call joins the attempt.
      kJoin,
      /// The call fails, because of `why`.
      kFail,
      /// The coordinator must be told that the attempt fails on this rank, because of `why`.
      kRefuse,
    };
    Kind kind;
    std::uint64_t call = 0;
    std::uint64_t number = 0;
    /// Joined or refused.
    AttemptProposal attempt;
    Status why;
  };

  /// Calls wait up to `timeout`.
  Pairing(int rank, std::chrono::nanoseconds timeout) : rank_(rank), timeout_(timeout) {}

  /// A call of Save. Returns its id.
  std::uint64_t Call(std::uint64_t step, TimePoint now);
  /// The attempt that this call had joined has ended, because of `why`, before this rank had begun: it waits for
  /// another one of its step.
  void CallAgain(std::uint64_t call, std::uint64_t step, const Status& why, TimePoint now);
  /// A call that was given up at once.
  void CallGivenUp(std::uint64_t step, const Status& why);
  /// The call, if it still waits, fails on this rank.
  void GiveUp(std::uint64_t call, const Status& why);
  /// No more attempts will come: all calls that wait fail.
  void FailAll(const Status& why);
  /// The next attempt, or the coordinator's refusal of a save.
  void Attempt(std::uint64_t number, AttemptProposal attempt);
  /// The outcome of an attempt that this rank has refused.
  void Outcome(std::uint64_t number, const Status& outcome);

  /// What follows, in order.
  [[nodiscard]] std::vector<Answer> Settle(TimePoint now);
  /// When Settle must be called again.
  [[nodiscard]] TimePoint wakes_at() const;
  /// An attempt may concern a call.
  [[nodiscard]] bool listens() const { return !calls_.empty(); }

 private:
  struct Called {
    std::uint64_t id = 0;
    std::uint64_t step = 0;
    TimePoint until;
    // Why it fails, if nothing pairs with it; once it has ended, why it has failed.
    Status why;
    bool ended = false;
    // Its counterpart fails at once.
    bool given_up = false;
  };
  struct Attempted {
    std::uint64_t number = 0;
    AttemptProposal proposal;
    // This rank has sent its message, or need not.
    bool answered = false;
    // The last call when it was refused.
    std::uint64_t refused_calls = 0;
    // Why it has ended, or, unless it is answered, why it is refused at `until`.
    Status why;
    TimePoint until = TimePoint::max();
  };

  [[nodiscard]] static bool AreCounterparts(const Attempted& attempt, const Called& call);
  [[nodiscard]] std::deque<Attempted>::iterator RefusedThere();
  [[nodiscard]] std::deque<Called>::iterator GivenUpHere();
  void Hasten(TimePoint now);
  void EndOverdue(TimePoint now);
  bool SettlePair(TimePoint now);
  void PassOver(std::size_t attempts, std::size_t calls);
  bool SettleDifferent();
  void Fail(Called& call, const Status& why);
  void Refuse(Attempted& attempt, const Status& why);
  void Forget();
  [[nodiscard]] Status Overdue(const Called& call);
  /// When who waits for another counterpart has waited enough.
  [[nodiscard]] TimePoint Patience(TimePoint now) const;

  const int rank_;
  const std::chrono::nanoseconds timeout_;
  std::uint64_t last_id_ = 0;
  std::deque<Called> calls_;
  std::deque<Attempted> attempts_;
  // The coordinator's, for messages.
  std::optional<std::uint64_t> last_step_;
  std::vector<Answer> answers_;
};

}  // namespace cairn
