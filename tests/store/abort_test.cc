// A rank without an outcome gives the attempt up while the coordinator may be about to commit it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "store/commit.h"
#include "store/names.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AbortTest : public ::testing::Test {
 protected:
  /// By rank 1, on its own queue.
  Status Abort(TestRanks& ranks) {
    return WaitFor(*rank_1_, [&](StatusDone done) {
      AbortAttempt(*rank_1_, ranks.folder(1), ranks.save().step, std::move(done));
    });
  }
  static void Prepare(TestRanks& ranks) {
    ASSERT_EQ(ranks.Begin(), Status::Ok());
    ASSERT_EQ(ranks.Write(), Status::Ok());
    ASSERT_EQ(ranks.Seal(), Status::Ok());
  }
  [[nodiscard]] std::size_t First(const FaultMatch& match) const {
    const std::vector<SeenOperation> seen = aborts_->Seen();
    const auto found = std::find_if(seen.begin(), seen.end(), [&](const SeenOperation& one) {
      return one.op == match.op && (one.path + one.path2).find(match.path) != std::string::npos;
    });
    return static_cast<std::size_t>(found - seen.begin());
  }

  TempDir root_;
  const std::shared_ptr<FaultPlan> commits_ = FaultPlan::Make();
  const std::shared_ptr<FaultPlan> aborts_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> rank_0_ = MakeQueue(commits_->Wrap(PlainFactory()));
  std::unique_ptr<IoQueue> rank_1_ = MakeQueue(aborts_->Wrap(PlainFactory()));
};

TEST_F(AbortTest, RenamesDurablyAndRemovesBeforeItReturns) {
  TestRanks ranks(*rank_0_, root_.path(), {.step = 5, .shards = 2});
  Prepare(ranks);

  const Status aborted = Abort(ranks);
  const Status committed = ranks.Commit();

  EXPECT_EQ(aborted.code(), StatusCode::kCancelled) << aborted;
  EXPECT_EQ(committed.code(), StatusCode::kFailedPrecondition) << committed;
  EXPECT_THAT(Names(root_.path()), IsEmpty());
  const std::size_t renamed = First({.op = IoOp::kRename, .path = ".retired-"});
  const std::size_t fsynced = First({.op = IoOp::kFsync, .path = root_.path()});
  EXPECT_LT(renamed, fsynced);
  EXPECT_LT(fsynced, First({.op = IoOp::kUnlink, .path = ".retired-"}));
}

TEST_F(AbortTest, IsCancelledAfterTheCoordinatorGaveUp) {
  TestRanks ranks(*rank_0_, root_.path(), {.step = 5, .shards = 2});
  Prepare(ranks);
  ASSERT_EQ(ranks.Abandon(), Status::Ok());

  EXPECT_EQ(Abort(ranks).code(), StatusCode::kCancelled);

  EXPECT_LT(First({.op = IoOp::kFsync, .path = root_.path()}), aborts_->Seen().size());
}

/// With and without support for exchanging names.
class AbortRace : public AbortTest, public ::testing::WithParamInterface<std::pair<bool, bool>> {
 protected:
  [[nodiscard]] bool replaces() const { return GetParam().first; }
  void Begin() {
    fs::remove_all(root_.path());
    fs::create_directory(root_.path());
    if (replaces()) {
      ASSERT_EQ(SaveTo(*rank_0_, root_.path(), old_), Status::Ok());
    }
    for (FaultPlan* plan : {commits_.get(), aborts_.get()}) {
      plan->Clear();
      if (GetParam().second) plan->RefuseRenameFlags();
    }
  }
  void ExpectOneTruth(const Status& committed, const Status& aborted) {
    const bool there = CheckContent(root_.path(), fresh_).ok();
    EXPECT_EQ(committed.ok(), there) << committed;
    EXPECT_EQ(aborted.code(), there ? StatusCode::kOk : StatusCode::kCancelled) << aborted;
    if (replaces() && !there) {
      EXPECT_EQ(CheckContent(root_.path(), old_), Status::Ok());
    }
    EXPECT_THAT(Names(root_.path()), ::testing::SizeIs(there || replaces() ? 1 : 0)) << "nothing is left";
  }

  const TestSave old_{.step = 5, .seed = 1};
  const TestSave fresh_{.step = 5, .seed = 2, .shards = 2, .replace = replaces()};
};
INSTANTIATE_TEST_SUITE_P(ReplacesAndFlagsRefused, AbortRace,
                         ::testing::Values(std::pair(false, false), std::pair(false, true), std::pair(true, false),
                                           std::pair(true, true)));

TEST_P(AbortRace, HasOneWinnerAtAnyOperationOfTheCommit) {
  std::size_t operations = 0;
  int commits = 0;
  for (std::size_t k = 0; k == 0 || k <= operations; ++k) {
    SCOPED_TRACE(testing::Message() << "abort before operation " << k << " of the commit");
    Begin();
    TestRanks ranks(*rank_0_, root_.path(), fresh_);
    Prepare(ranks);
    std::optional<Status> aborted;
    if (k != 0) commits_->CallBefore({.nth = k}, [&](const SeenOperation&) { aborted = Abort(ranks); });
    const std::size_t before = commits_->Count({});

    const Status committed = ranks.Commit();
    if (k == 0) operations = commits_->Count({}) - before;
    if (!aborted) aborted = Abort(ranks);

    ExpectOneTruth(committed, *aborted);
    commits += committed.ok() ? 1 : 0;
  }
  EXPECT_GT(commits, 1);
}

TEST_P(AbortRace, HasOneWinnerAtAnyOperationOfTheAbort) {
  std::size_t operations = 1;
  for (std::size_t k = 1; k <= operations; ++k) {
    SCOPED_TRACE(testing::Message() << "commit before operation " << k << " of the abort");
    Begin();
    TestRanks ranks(*rank_0_, root_.path(), fresh_);
    Prepare(ranks);
    std::optional<Status> committed;
    aborts_->CallBefore({.nth = k}, [&](const SeenOperation&) { committed = ranks.Commit(); });
    const std::size_t before = aborts_->Count({});

    const Status aborted = Abort(ranks);
    operations = std::max(operations, aborts_->Count({}) - before);
    if (!committed) committed = ranks.Commit();

    ExpectOneTruth(*committed, aborted);
  }
}

// Whatever became of a committed step, it is never reported as failed.
TEST_F(AbortTest, IsUnknownOnceACommittedStepIsGone) {
  enum class Since : std::uint8_t { kRetired, kReplaced, kPublished, kBeingReplaced };
  const TempDir elsewhere;
  std::uint64_t step = 10;
  for (const Since since : {Since::kRetired, Since::kReplaced, Since::kPublished, Since::kBeingReplaced}) {
    SCOPED_TRACE(static_cast<int>(since));
    TestRanks ranks(*rank_0_, root_.path(), {.step = ++step, .shards = 2});
    Prepare(ranks);
    ASSERT_EQ(ranks.Commit(), Status::Ok());
    switch (since) {
      case Since::kRetired:
        ASSERT_EQ(Remove(*rank_0_, root_.path(), step), Status::Ok());
        break;
      case Since::kReplaced:
        ASSERT_EQ(SaveTo(*rank_0_, root_.path(), {.step = step, .seed = 7, .replace = true}), Status::Ok());
        break;
      case Since::kPublished:
        fs::rename(root_ / StepName(step), elsewhere / "last.ckpt");
        break;
      case Since::kBeingReplaced:
        fs::rename(root_ / StepName(step), root_ / ReplacedName(step, "b"));
        break;
    }

    const Status status = Abort(ranks);

    EXPECT_EQ(status.code(), StatusCode::kUnknownOutcome) << status;
  }
}

TEST_F(AbortTest, LeavesTheReplacedCheckpointToTheCommit) {
  ASSERT_EQ(SaveTo(*rank_0_, root_.path(), {.step = 5, .seed = 1}), Status::Ok());
  const TestSave fresh{.step = 5, .seed = 2, .shards = 2, .replace = true};
  TestRanks ranks(*rank_0_, root_.path(), fresh);
  Prepare(ranks);
  std::optional<Status> committed;
  std::optional<Status> aborted;
  commits_->CallAfter({.op = IoOp::kRename, .rename = RenameMode::kExchange},
                      [&](const SeenOperation&) { aborted = Abort(ranks); });

  committed = ranks.Commit();

  EXPECT_EQ(*committed, Status::Ok());
  EXPECT_EQ(*aborted, Status::Ok());
  EXPECT_EQ(CheckContent(root_.path(), fresh), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(5)));
}

TEST_F(AbortTest, IsRightOrUnknownWhenAnyOperationFails) {
  std::size_t operations = 1;
  for (std::size_t k = 1; k <= operations; ++k) {
    for (const bool after : {false, true}) {
      SCOPED_TRACE(testing::Message() << (after ? "after" : "at") << " operation " << k);
      TestRanks ranks(*rank_0_, root_.path(), {.step = 5, .shards = 2});
      Prepare(ranks);
      aborts_->Clear();
      after ? aborts_->FailAfter({.nth = k}, EIO) : aborts_->Fail({.nth = k}, EIO);
      const std::size_t before = aborts_->Count({});

      const Status aborted = Abort(ranks);
      operations = std::max(operations, aborts_->Count({}) - before);
      const Status committed = ranks.Commit();

      EXPECT_TRUE(aborted.code() == StatusCode::kCancelled || aborted.code() == StatusCode::kUnknownOutcome) << aborted;
      EXPECT_FALSE(committed.ok() && aborted.code() == StatusCode::kCancelled);
      fs::remove_all(root_.path());
      fs::create_directory(root_.path());
    }
  }
}

}  // namespace
}  // namespace cairn
