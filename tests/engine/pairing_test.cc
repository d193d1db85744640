#include "engine/pairing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr seconds kTimeout{60};

/// Rank 1's pairing, with a clock of its own.
class Pairs : public testing::Test {
 protected:
  std::uint64_t Call(std::uint64_t step) { return pairing_.Call(step, now_); }
  void Attempt(std::uint64_t step, const Status& refusal = {}) {
    pairing_.Attempt(attempts_++, {.step = step, .refusal = refusal});
  }
  /// "call 1 joins 0", "call 1 fails: why", "0 refused: why".
  std::vector<std::string> Settle() {
    std::vector<std::string> said;
    for (const Pairing::Answer& answer : pairing_.Settle(now_)) {
      switch (answer.kind) {
        case Pairing::Answer::Kind::kJoin:
          said.push_back(fmt::format("call {} joins {}", answer.call, answer.number));
          break;
        case Pairing::Answer::Kind::kFail:
          said.push_back(fmt::format("call {} fails: {}", answer.call, answer.why.message()));
          break;
        case Pairing::Answer::Kind::kRefuse:
          said.push_back(fmt::format("{} refused: {}", answer.number, answer.why.message()));
          last_refusal_ = answer.why;
      }
    }
    return said;
  }
  /// The coordinator fails the attempt because of what Settle has refused it for.
  void FailAsRefused(std::uint64_t number) {
    pairing_.Outcome(number,
                     Status(last_refusal_.code(), "rank 1: " + last_refusal_.message(), last_refusal_.detail()));
  }
  void Pass(std::chrono::nanoseconds span) { now_ += span; }

  Pairing pairing_{1, kTimeout};
  Pairing::TimePoint now_{seconds(1000)};
  std::uint64_t attempts_ = 0;
  Status last_refusal_;
  const Status missing_{StatusCode::kDeadlineExceeded, "nothing from rank 1", StatusDetail::kRanksMissing};
};

TEST_F(Pairs, JoinTheAttemptOfTheirStepInEitherOrder) {
  const auto first = Call(1);
  EXPECT_THAT(Settle(), IsEmpty());
  Attempt(1);
  EXPECT_THAT(Settle(), ElementsAre(fmt::format("call {} joins 0", first)));
  EXPECT_FALSE(pairing_.listens());
  Attempt(2);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(pairing_.wakes_at(), Pairing::TimePoint::max());
  const auto second = Call(2);
  EXPECT_THAT(Settle(), ElementsAre(fmt::format("call {} joins 1", second)));
}

TEST_F(Pairs, PassOverCallsThatTheCoordinatorDidNotMake) {
  Call(2);
  Call(3);
  Call(6);
  Attempt(6);

  EXPECT_THAT(Settle(),
              ElementsAre(HasSubstr("call 1 fails: ranks save different steps: rank 0 saves 6, rank 1 saves 2"),
                          HasSubstr("call 2 fails"), "call 3 joins 0"));
}

TEST_F(Pairs, RefuseAttemptsThatThisRankLeavesOut) {
  Attempt(2);
  Attempt(6);
  Call(6);

  EXPECT_THAT(Settle(), ElementsAre(HasSubstr("0 refused: ranks save different steps: rank 0 saves 2, rank 1 saves 6"),
                                    "call 1 joins 1"));
}

TEST_F(Pairs, TakeTheSameStepTwiceInOrder) {
  Call(2);
  Call(2);
  Attempt(2);
  Attempt(2);

  EXPECT_THAT(Settle(), ElementsAre("call 1 joins 0", "call 2 joins 1"));
}

TEST_F(Pairs, FailTogetherIfTheStepsDiffer) {
  Call(4);
  Attempt(5);
  EXPECT_THAT(Settle(),
              ElementsAre(HasSubstr("0 refused: ranks save different steps: rank 0 saves 5, rank 1 saves 4")));
  FailAsRefused(0);

  EXPECT_THAT(Settle(), ElementsAre(HasSubstr("call 1 fails: rank 1: ranks save different steps")));

  // And whichever step both try next.
  for (const std::uint64_t step : {4, 5, 6}) {
    Attempt(step);
    EXPECT_THAT(Settle(), IsEmpty());
    const auto call = Call(step);
    EXPECT_THAT(Settle(), ElementsAre(fmt::format("call {} joins {}", call, attempts_ - 1)));
  }
}

TEST_F(Pairs, WaitOnIfTheOtherAttemptHadFailedBefore) {
  Attempt(2);
  Call(6);
  EXPECT_THAT(Settle(), ElementsAre(HasSubstr("0 refused")));
  pairing_.Outcome(0, missing_);
  EXPECT_THAT(Settle(), IsEmpty());
  Attempt(6);

  EXPECT_THAT(Settle(), ElementsAre("call 1 joins 1"));
}

// Both save 6, after a lone save of rank 0 that has not ended. Rank 0 calls last: its 6 has no counterpart any more.
TEST_F(Pairs, RefuseTheCounterpartOfACallThatHasFailed) {
  Attempt(2);
  Call(6);
  static_cast<void>(Settle());
  FailAsRefused(0);
  static_cast<void>(Settle());
  Attempt(6);
  EXPECT_THAT(Settle(), IsEmpty());

  // It waits for a call that may be made again, until another one comes, or its time is over.
  Call(7);
  EXPECT_THAT(Settle(), ElementsAre(HasSubstr("1 refused: rank 1: ranks save different steps")));
  Attempt(7);
  EXPECT_THAT(Settle(), ElementsAre("call 2 joins 2"));
}

TEST_F(Pairs, GiveTheCounterpartOfALateCallUpInTime) {
  Call(2);
  Pass(kTimeout);
  EXPECT_THAT(Settle(), ElementsAre("call 1 fails: rank 1 called save of step 2, and rank 0 did not within "
                                    "group_timeout"));
  Attempt(2);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(pairing_.wakes_at(), now_ + Pairing::kPatience);
  Pass(Pairing::kPatience);

  EXPECT_THAT(Settle(), ElementsAre(HasSubstr("0 refused: rank 1 called save of step 2")));
  EXPECT_EQ(pairing_.wakes_at(), Pairing::TimePoint::max());
}

TEST_F(Pairs, TryTheSameStepAgainAfterALoneCall) {
  Call(2);
  Pass(kTimeout);
  static_cast<void>(Settle());
  Attempt(2);
  static_cast<void>(Settle());
  Call(2);

  EXPECT_THAT(Settle(), ElementsAre("call 2 joins 0"));
}

TEST_F(Pairs, WaitForAnotherAttemptWhereTheJoinedOneWasOver) {
  Attempt(2);
  Call(2);
  static_cast<void>(Settle());
  pairing_.CallAgain(1, 2, missing_, now_);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(pairing_.wakes_at(), now_ + Pairing::kPatience);
  Attempt(2);
  EXPECT_THAT(Settle(), ElementsAre("call 1 joins 1"));

  pairing_.CallAgain(1, 2, missing_, now_);
  Pass(Pairing::kPatience);
  EXPECT_THAT(Settle(), ElementsAre("call 1 fails: nothing from rank 1"));
}

TEST_F(Pairs, FailTheAttemptOfACallThatWasGivenUp) {
  const Status why(StatusCode::kInvalidArgument, "no such thing");
  pairing_.CallGivenUp(1, why);
  Attempt(1);
  EXPECT_THAT(Settle(), ElementsAre("0 refused: no such thing"));
  Call(2);
  pairing_.GiveUp(2, why);
  Attempt(2);
  EXPECT_THAT(Settle(), ElementsAre("1 refused: no such thing"));

  // Alone: it concerns no other step.
  pairing_.CallGivenUp(3, why);
  Attempt(4);
  EXPECT_THAT(Settle(), IsEmpty());
  Call(4);
  EXPECT_THAT(Settle(), ElementsAre("call 4 joins 2"));

  // It stands for the attempt that it meets, and the next call for the next one.
  pairing_.CallGivenUp(5, why);
  Attempt(6);
  Call(7);
  EXPECT_THAT(Settle(),
              ElementsAre(HasSubstr("3 refused: ranks save different steps: rank 0 saves 6, rank 1 saves 5")));
  FailAsRefused(3);
  EXPECT_THAT(Settle(), IsEmpty());
  Attempt(7);
  EXPECT_THAT(Settle(), ElementsAre("call 6 joins 4"));
}

TEST_F(Pairs, HearTheCoordinatorsRefusal) {
  Attempt(1, Status(StatusCode::kAlreadyExists, "step 1 is committed"));
  Attempt(2);
  Call(1);
  Call(2);

  EXPECT_THAT(Settle(), ElementsAre("call 1 fails: step 1 is committed", "call 2 joins 1"));
}

// The coordinator finds out by itself that its step is wrong, and waits for nobody.
TEST_F(Pairs, HearSoonThatTheCoordinatorsOtherStepIsRefused) {
  Call(6);
  Attempt(1, Status(StatusCode::kAlreadyExists, "rank 0: step 1 is committed"));
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(pairing_.wakes_at(), now_ + Pairing::kPatience);
  Pass(Pairing::kPatience);

  EXPECT_THAT(Settle(), ElementsAre("call 1 fails: ranks save different steps: rank 0 saves 1, rank 1 saves 6, which "
                                    "failed at once: rank 0: step 1 is committed"));

  // If both come to it in time after all, or later, they meet. What was refused counts once.
  Attempt(6);
  Call(6);
  EXPECT_THAT(Settle(), ElementsAre("call 2 joins 1"));
  Attempt(1, Status(StatusCode::kAlreadyExists, "rank 0: step 1 is committed"));
  Call(7);
  EXPECT_THAT(Settle(), IsEmpty());
  Attempt(7);
  EXPECT_THAT(Settle(), ElementsAre("call 3 joins 3"));
  Call(8);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(pairing_.wakes_at(), now_ + kTimeout);
}

TEST_F(Pairs, TellTheCoordinatorSoonOfAnotherStepThatWasGivenUp) {
  pairing_.CallGivenUp(3, Status(StatusCode::kInvalidArgument, "no such thing"));
  Attempt(4);
  EXPECT_THAT(Settle(), IsEmpty());
  Pass(Pairing::kPatience);

  EXPECT_THAT(Settle(),
              ElementsAre("0 refused: ranks save different steps: rank 0 saves 4, rank 1 saves 3, which failed "
                          "at once: no such thing"));
  EXPECT_FALSE(pairing_.listens());
}

TEST_F(Pairs, TakeACallWithoutAStepForTheCounterpart) {
  const Status why(StatusCode::kInvalidArgument, "step: found 'x'");
  Call(4);
  Attempt(Pairing::kAnyStep, why);
  EXPECT_THAT(Settle(), ElementsAre("call 1 fails: step: found 'x'"));
  pairing_.CallGivenUp(Pairing::kAnyStep, why);
  Attempt(4);
  EXPECT_THAT(Settle(), ElementsAre("1 refused: step: found 'x'"));
  Call(5);
  Attempt(5);
  EXPECT_THAT(Settle(), ElementsAre("call 3 joins 2"));
}

TEST_F(Pairs, RememberOnlySomeOfWhatHasEnded) {
  for (std::uint64_t step = 0; step < 1000; ++step) Call(step);
  Pass(kTimeout);
  static_cast<void>(Settle());
  for (std::uint64_t step = 0; step < 1000; ++step) pairing_.CallGivenUp(step, missing_);
  static_cast<void>(Settle());
  const std::uint64_t last = Call(1000);
  for (std::uint64_t step = 0; step <= 1000; ++step) Attempt(step);

  const auto answers = Settle();

  EXPECT_EQ(answers.size(), 1001U) << "each attempt has one answer";
  EXPECT_EQ(answers.back(), fmt::format("call {} joins 1000", last));
}

}  // namespace
}  // namespace cairn
