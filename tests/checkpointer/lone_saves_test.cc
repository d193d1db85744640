// Saves that some ranks make alone, or leave out. They fail, and the next save that all ranks make succeeds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "support/three_ranks.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::milliseconds kSoonOver{600};

class LoneSaves : public Ranks {
 protected:
  void ExpectDifferent(const SaveHandle& save, const std::string& steps) {
    const Status status = save.WaitDurable(Soon());
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(status.detail(), StatusDetail::kStepsDiffer) << status;
    EXPECT_THAT(status.message(), HasSubstr("ranks save different steps: " + steps));
  }
};

TEST_F(LoneSaves, ShiftNothing) {
  OpenAll(kSoonOver);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::uint64_t step = 2;
  for (const std::vector<int>& alone : {std::vector{0}, {1}, {0, 2}, {1, 2}}) {
    SCOPED_TRACE(testing::PrintToString(alone));
    for (const bool again : {false, true}) {  // All save the next step, or the same one.
      std::vector<SaveHandle> saves;
      for (const int of : alone) saves.push_back(Start(of, step));

      for (const SaveHandle& save : saves) {
        const Status status = save.WaitDurable(Soon());
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
        const std::string name = "step " + std::to_string(step);
        EXPECT_THAT(status.message(),
                    alone[0] == 0 ? AllOf(HasSubstr(name + ": nothing from rank 1"),
                                          HasSubstr("the last save of rank 1 was of step " + std::to_string(step - 1)))
                                  : AllOf(HasSubstr("called save of " + name), HasSubstr("rank 0 did not")));
      }
      if (!again) ++step;
      EXPECT_THAT(SaveAll(step), Each(Status::Ok()));
      ++step;
    }
  }
}

TEST_F(LoneSaves, InFlightAreFailedByTheNextSaveOfAll) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));

  for (int alone = 0; alone < kRanks; ++alone) {
    SCOPED_TRACE(alone);
    const auto step = static_cast<std::uint64_t>(10 * (alone + 1));
    const SaveHandle lone = Start(alone, step);
    std::vector<SaveHandle> saves = {Start(alone, step + 1)};
    // Both are announced before the others call.
    const std::string announced = "attempt/" + std::to_string(2 + alone);
    ASSERT_TRUE(alone != 0 || group(0).WaitSaid(announced, Soon()));
    for (int of = 0; of < kRanks; ++of) {
      if (of != alone) saves.push_back(Start(of, step + 1));
    }

    EXPECT_THAT(WaitAll(saves), Each(Status::Ok()));

    const std::string mine = std::to_string(step);
    const std::string next = std::to_string(step + 1);
    const Status status = lone.WaitDurable(Soon());
    EXPECT_EQ(status.detail(), StatusDetail::kStepsDiffer) << status;
    EXPECT_THAT(status.message(),
                HasSubstr(alone == 0 ? "rank 0 saves " + mine + ", rank "
                                     : "rank 0 saves " + next + ", rank " + std::to_string(alone) + " saves " + mine));
    EXPECT_THAT(ListedSteps(rank(0)), AllOf(Contains(step + 1), Not(Contains(step))));
  }
}

// The other ranks come first, and meet the lone save: both have failed, at once, and the next one succeeds.
TEST_F(LoneSaves, MetInFlightFailBothAndNoMore) {
  OpenAll(kNever);
  const SaveHandle lone = Start(0, 2);
  ASSERT_TRUE(group(0).WaitSaid("attempt/0", Soon()));

  const std::vector<SaveHandle> saves = {Start(1, 6), Start(2, 6)};

  ExpectDifferent(lone, "rank 0 saves 2, rank ");
  for (const SaveHandle& save : saves) ExpectDifferent(save, "rank 0 saves 2, rank ");
  const SaveHandle last = Start(0, 6);
  EXPECT_THAT(SaveAll(7), Each(Status::Ok()));
  ExpectDifferent(last, "rank 0 saves 2, rank ");
}

TEST_F(LoneSaves, DifferentStepsMayBeTriedAgain) {
  OpenAll(kNever);
  std::uint64_t step = 10;
  for (const int change : {0, 1, 2}) {
    for (const SaveHandle& save : {Start(0, step), Start(1, step), Start(2, step + 1)}) {
      const std::string first = std::to_string(step);
      ExpectDifferent(save, "rank 0 saves " + first + ", rank 2 saves " + std::to_string(step + 1));
    }

    EXPECT_THAT(SaveAll(step + static_cast<std::uint64_t>(change)), Each(Status::Ok()));
    step += 10;
  }
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(10, 21, 32));
}

TEST_F(LoneSaves, GivenUpShiftNothing) {
  OpenAll(kNever);
  const Status why(StatusCode::kInvalidArgument, "no such thing");
  ASSERT_TRUE(rank(1).GiveUp(1, why).ok());
  ASSERT_THAT(SaveAll(2), Each(Status::Ok()));
  ASSERT_TRUE(rank(0).GiveUp(3, why).ok());
  ASSERT_THAT(SaveAll(4), Each(Status::Ok()));

  // Not alone.
  ASSERT_TRUE(rank(0).GiveUp(5, why).ok());
  for (const SaveHandle& save : {Start(1, 5), Start(2, 5)}) {
    EXPECT_THAT(save.WaitDurable(Soon()).message(), HasSubstr("rank 0: no such thing"));
  }
  EXPECT_THAT(SaveAll(5), Each(Status::Ok()));
}

// A rank that comes after rank 0 has given the attempt up hears rank 0's reason, not that it is missing.
TEST_F(LoneSaves, LateRankHearsWhyTheAttemptIsGone) {
  OpenAll(kSoonOver);
  const std::vector<SaveHandle> saves = {Start(0, 1), Start(1, 1)};
  EXPECT_THAT(WaitAll(saves), Each(HasCode(StatusCode::kDeadlineExceeded)));

  const Status late = Start(2, 1).WaitDurable(Soon());

  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(late.message(), HasSubstr("step 1: nothing from rank 2 within group_timeout"));
  ExpectWorksFrom(2);
}

TEST_F(LoneSaves, MissingAttemptHasRankZerosReason) {
  OpenAll(kNever);
  group(2).Hold("outcome/");
  const FaultGate writing = plan(0).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const FaultGate opening = plan(2).Hold({.op = IoOp::kOpen, .path = ".attempt-", .nth = 1});
  const FaultGate looking = plan(2).Hold({.op = IoOp::kOpen, .path = ".attempt-", .nth = 2});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(writing.WaitHeld(Soon()) && opening.WaitHeld(Soon()));
  EXPECT_TRUE(saves[0].Cancel());
  writing.Release();
  EXPECT_EQ(saves[0].WaitDurable(Soon()).code(), StatusCode::kCancelled);

  opening.Release();
  ASSERT_TRUE(looking.WaitHeld(Soon()));
  looking.Release();
  group(2).Release();

  const Status status = saves[2].WaitDurable(Soon());
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0: step 1: cancelled by the caller"));
  ExpectWorksFrom(2);
}

// Its looking has ended before it hears so.
TEST_F(LoneSaves, AttemptThatIsNeverSeenHasRankZerosReason) {
  OpenAll(std::chrono::seconds(1));
  group(2).Hold("outcome/");
  const FaultGate writing = plan(0).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const FaultGate opening = plan(2).Hold({.op = IoOp::kOpen, .path = ".attempt-", .nth = 1});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(writing.WaitHeld(Soon()) && opening.WaitHeld(Soon()));
  EXPECT_TRUE(saves[0].Cancel());
  writing.Release();
  EXPECT_EQ(saves[0].WaitDurable(Soon()).code(), StatusCode::kCancelled);

  opening.Release();
  ASSERT_TRUE(group(2).WaitSaid("prepared/", Soon()));
  group(2).Release();

  const Status status = saves[2].WaitDurable(Soon());
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0: step 1: cancelled by the caller"));
}

}  // namespace
}  // namespace cairn
