// A save of unknown outcome: its step may be saved again, whatever is on the disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <vector>

#include "cairn/cairn.h"
#include "store/names.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Property;

std::vector<Status> SaveOnAll(const std::vector<std::unique_ptr<Checkpointer>>& ranks, std::uint64_t step,
                              std::uint64_t variant = 0) {
  std::vector<std::unique_ptr<Tensors>> states;
  std::vector<SaveHandle> saves;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    states.push_back(SmallState(step, static_cast<int>(rank), variant));
    const auto save = ranks[rank]->Save(step, states.back()->state());
    EXPECT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }
  std::vector<Status> statuses;
  for (const SaveHandle& save : saves) statuses.push_back(save.WaitDurable(Soon()));
  return statuses;
}

class Unknown : public testing::Test {
 protected:
  Unknown() : checkpointer_(OpenOrFail(SmallOptions(root()), Through(plan_))) {}

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  /// Fails the fsync of the root that follows the next rename to a step.
  static void FailRootFsync(FaultPlan& plan) {
    plan.CallAfter({.op = IoOp::kRename, .path = "step-", .nth = 1},
                   [&plan](const SeenOperation&) { plan.Fail({.op = IoOp::kFsync, .nth = 1}, EIO); });
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(Unknown, StepToBeReplacedMayBeSavedAgain) {
  ASSERT_EQ(SaveDurably(*checkpointer_, 1), Status::Ok());
  FailRootFsync(*plan_);
  ASSERT_EQ(SaveDurably(*checkpointer_, 1, {.if_exists = IfExists::kReplace}, 7).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();

  EXPECT_EQ(SaveDurably(*checkpointer_, 1, {}, 8), Status::Ok());

  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(1), 8), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  EXPECT_EQ(SaveDurably(*checkpointer_, 1).code(), StatusCode::kAlreadyExists) << "its outcome is known now";
}

// The root is listed again: a step that may not be durable neither counts for retention nor stays for ever.
TEST_F(Unknown, StepIsRemovedOnceEnoughNewerOnesAreDurable) {
  Options options = SmallOptions(root());
  options.keep_last = 2;
  checkpointer_.reset();
  checkpointer_ = OpenOrFail(options, Through(plan_));
  ASSERT_EQ(SaveDurably(*checkpointer_, 1), Status::Ok());
  FailRootFsync(*plan_);
  ASSERT_EQ(SaveDurably(*checkpointer_, 2).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();

  ASSERT_EQ(SaveDurably(*checkpointer_, 3), Status::Ok());
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 2, 3)) << "2 does not count as one of the two to keep";
  ASSERT_EQ(SaveDurably(*checkpointer_, 4), Status::Ok());
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(3, 4));
}

// If a listing cannot tell, it is repeated after the next save, not endlessly.
TEST_F(Unknown, UnreadableStepIsListedOncePerSave) {
  plan_->CallAfter({.op = IoOp::kRename, .path = "step-", .nth = 1}, [this](const SeenOperation&) {
    plan_->Fail({.op = IoOp::kFsync, .nth = 1}, EIO);
    std::filesystem::resize_file(root() + "/" + StepName(1) + "/manifest.json", 1);
  });
  ASSERT_EQ(SaveDurably(*checkpointer_, 1).code(), StatusCode::kUnknownOutcome);
  ASSERT_EQ(SaveDurably(*checkpointer_, 2), Status::Ok());
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());

  checkpointer_.reset();

  EXPECT_LE(plan_->Count({.op = IoOp::kCall, .path = root()}), 60U);
}

// Like a rename that the disk has lost.
TEST_F(Unknown, MissingStepMayBeSavedAgain) {
  FailRootFsync(*plan_);
  ASSERT_EQ(SaveDurably(*checkpointer_, 1).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();
  std::filesystem::remove_all(root() + "/" + StepName(1));

  EXPECT_EQ(SaveDurably(*checkpointer_, 1, {}, 7), Status::Ok());

  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(1), 7), Status::Ok());
}

TEST_F(Unknown, StepOfSeveralRanksMayBeSavedAgain) {
  checkpointer_.reset();
  const auto ranks =
      OpenRanks(2, SmallOptions(root()), [this](int rank) { return Through(rank == 0 ? plan_ : FaultPlan::Make()); });
  ASSERT_EQ(ranks.size(), 2U);
  FailRootFsync(*plan_);
  ASSERT_THAT(SaveOnAll(ranks, 1, 7), Each(Property(&Status::code, StatusCode::kUnknownOutcome)));
  plan_->Clear();

  EXPECT_THAT(SaveOnAll(ranks, 1, 8), Each(Status::Ok()));

  const auto fresh = SmallState(0, 1);
  ASSERT_TRUE(ReadAlone(*ranks[1], Step(1), fresh->state()).ok());
  EXPECT_TRUE(Holds(*fresh, 1, 1, 8));
}

// The attempt is of rank 0's line: only the parent shows that the other rank's tensors belong to another one.
TEST(RanksOfTwoLines, CommitNothingIfOneHasRestoredNothing) {
  const TempDir dir;
  const auto ranks = OpenRanks(2, SmallOptions(dir / "run"));
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_THAT(SaveOnAll(ranks, 1), Each(Status::Ok()));
  ASSERT_TRUE(ReadAlone(*ranks[0], Step(1), SmallState(0, 0)->state()).ok());

  const std::vector<Status> statuses = SaveOnAll(ranks, 2);

  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("ranks continue different checkpoints: rank 0"));
  }
  EXPECT_THAT(ListedSteps(*ranks[0]), ElementsAre(1));
  EXPECT_THAT(Leftovers(dir / "run"), testing::IsEmpty());
}

}  // namespace
}  // namespace cairn
