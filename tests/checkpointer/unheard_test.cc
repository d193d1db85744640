// Failures that nobody has heard: the first of them is what Drain returns.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>

#include "api/checkpointer_impl.h"
#include "cairn/cairn.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class Unheard : public testing::Test {
 protected:
  void SetUp() override { checkpointer_ = OpenOrFail(SmallOptions(dir_ / "run"), Through(plan_)); }
  SaveHandle Save(std::uint64_t step, std::chrono::nanoseconds hold = {}) {
    states_.push_back(SmallState(step));
    auto save =
        Inside::Of(*checkpointer_).Save(step, states_.back()->state(), states_.back()->state().values(), {}, hold);
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  /// A save that has failed.
  SaveHandle Fail(std::uint64_t step) {
    plan_->Fail({.op = IoOp::kFsync, .path = "shard-", .nth = 1}, EIO);
    SaveHandle save = Save(step);
    EXPECT_EQ(Inside::Of(*checkpointer_).WaitIdle(Soon()), Status::Ok());
    plan_->Clear();
    return save;
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::vector<std::unique_ptr<Tensors>> states_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(Unheard, DrainReturnsAFailureThatCameBeforeItOnce) {
  Fail(1);
  Save(2);

  const Status status = checkpointer_->Drain(Soon());

  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("shard-00000.safetensors"));
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer_->LastFailure(), status);
}

TEST_F(Unheard, DrainReturnsTheFirstAndCountsTheOthers) {
  const SaveHandle first = Fail(1);
  Fail(2);
  Fail(3);

  const Status status = checkpointer_->Drain(Soon());

  EXPECT_THAT(status.message(), StartsWith(first.status().message()));
  EXPECT_THAT(status.message(), HasSubstr(" (and 2 more saves have failed)"));
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
}

TEST_F(Unheard, WhatACallHasReturnedIsHeard) {
  EXPECT_FALSE(Fail(1).WaitDurable(Soon()).ok());
  EXPECT_FALSE(Fail(2).status().ok());
  Fail(3);
  EXPECT_FALSE(checkpointer_->LastFailure().ok());

  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
}

TEST_F(Unheard, LastFailureMakesOnlyTheNewestHeard) {
  const SaveHandle first = Fail(1);
  Fail(2);
  EXPECT_FALSE(checkpointer_->LastFailure().ok());

  const Status status = checkpointer_->Drain(Soon());

  EXPECT_EQ(status, first.status());
}

TEST_F(Unheard, WaitTensorsFreeAndWaitEndedReportNothing) {
  const SaveHandle save = Fail(1);

  EXPECT_TRUE(Inside::Of(save).WaitTensorsFree(Soon()));
  EXPECT_TRUE(Inside::Of(save).WaitEnded(Soon()));

  EXPECT_FALSE(checkpointer_->Drain(Soon()).ok());
}

TEST_F(Unheard, ACancelledSaveIsNoFailure) {
  const SaveHandle held = Save(1, std::chrono::minutes(10));
  EXPECT_TRUE(held.Cancel());

  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
}

TEST_F(Unheard, AFailureByADeadlineIsToldFromADrainThatTookTooLong) {
  const SaveHandle held = Save(1, std::chrono::minutes(10));
  EXPECT_THAT(checkpointer_->Drain(Deadline::In({})).message(), HasSubstr("still in flight: 1 save (step"));
  EXPECT_FALSE(Inside::Of(held).WaitEnded(Deadline::In({})));
  Inside::Of(held).RequestCancel(Status(StatusCode::kDeadlineExceeded, "step 1: a deadline of its own"));

  ASSERT_EQ(Inside::Of(*checkpointer_).WaitIdle(Soon()), Status::Ok());
  EXPECT_EQ(Inside::Of(*checkpointer_).TakeUnheardFailure().message(), "step 1: a deadline of its own");
  EXPECT_EQ(Inside::Of(*checkpointer_).TakeUnheardFailure(), Status::Ok());
}

TEST(UnheardOfRanks, WhoGivesUpKnowsAndTheOthersHear) {
  const TempDir dir;
  const auto ranks = OpenRanks(2, SmallOptions(dir / "run"));
  ASSERT_EQ(ranks.size(), 2U);
  const auto state = SmallState(1);
  const Status why(StatusCode::kInvalidArgument, "its tree cannot be kept");
  ASSERT_TRUE(ranks[1]->GiveUp(1, why).ok());
  ASSERT_TRUE(ranks[0]->Save(1, state->state()).ok());

  EXPECT_EQ(ranks[0]->Drain(Soon()).message(), "rank 1: its tree cannot be kept");
  EXPECT_EQ(ranks[1]->Drain(Soon()), Status::Ok());
}

}  // namespace
}  // namespace cairn
