// Saves that are committed only when their caller releases them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "api/checkpointer_impl.h"
#include "cairn/cairn.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Hold : public testing::Test {
 protected:
  void Open(const Options& options) { checkpointer_ = OpenOrFail(options); }
  void Open() { Open(SmallOptions(root())); }
  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  SaveHandle Save(std::uint64_t step, std::chrono::nanoseconds hold) {
    states_.push_back(SmallState(step));
    auto save =
        Inside::Of(*checkpointer_).Save(step, states_.back()->state(), states_.back()->state().values(), {}, hold);
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }

  const TempDir dir_;
  // Kept until every save has ended.
  std::vector<std::unique_ptr<Tensors>> states_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(Hold, CommitsWhenReleasedWithoutDelayingOthers) {
  Open();
  const SaveHandle held = Save(1, minutes(10));

  ASSERT_TRUE(held.WaitCaptured(Soon()).ok());
  ASSERT_TRUE(Save(2, {}).WaitDurable(Soon()).ok());  // It writes only after the older one.
  EXPECT_EQ(held.stats().phase, SavePhase::kCaptured);
  EXPECT_GT(held.stats().written.count(), 0);
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(2));

  Inside::Of(held).Release();

  EXPECT_TRUE(held.WaitDurable(Soon()).ok()) << held.status();
  EXPECT_TRUE(RestoreAndCompare(*checkpointer_, Step(1)).ok());
}

TEST_F(Hold, CommitsAtOnceIfReleasedBefore) {
  Open();
  const SaveHandle held = Save(1, minutes(10));

  Inside::Of(held).Release();

  EXPECT_TRUE(held.WaitDurable(Soon()).ok()) << held.status();
}

TEST_F(Hold, FailsIfNotReleasedInTime) {
  Open();
  ASSERT_TRUE(Save(1, {}).WaitDurable(Soon()).ok());

  const Status status = Save(2, milliseconds(1)).WaitDurable(Soon());

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("step 2: written, but its commit was not released within 0.001 s"));
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  EXPECT_TRUE(Save(2, {}).WaitDurable(Soon()).ok());
}

TEST_F(Hold, CanBeCancelledInstead) {
  Open();
  const SaveHandle held = Save(1, minutes(10));
  ASSERT_TRUE(held.WaitCaptured(Soon()).ok());

  EXPECT_TRUE(held.Cancel());

  EXPECT_EQ(held.WaitDurable(Soon()).code(), StatusCode::kCancelled);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(Hold, CancelWithAReasonIsAFailure) {
  Open();
  const SaveHandle held = Save(1, minutes(10));
  ASSERT_TRUE(held.WaitCaptured(Soon()).ok());

  EXPECT_TRUE(Inside::Of(held).RequestCancel(Status(StatusCode::kFailedPrecondition, "it was torn")));
  Inside::Of(held).Release();  // Too late.

  const Status status = held.WaitDurable(Soon());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "it was torn");
  EXPECT_EQ(checkpointer_->LastFailure().message(), "it was torn");
  EXPECT_THAT(ListedSteps(*checkpointer_), IsEmpty());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(Hold, EndsWithTheCheckpointer) {
  Open(SmallOptions(root()));
  const SaveHandle held = Save(1, minutes(10));

  AbandonAtOnce(*checkpointer_);
  checkpointer_.reset();

  EXPECT_FALSE(held.WaitDurable(Soon()).ok());
  Inside::Of(held).Release();
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(Hold, OfOneRankHoldsAllRanks) {
  const auto ranks = OpenRanks(2, SmallOptions(root()));
  ASSERT_EQ(ranks.size(), 2U);
  const auto save = [&](std::uint64_t step, int rank, std::chrono::nanoseconds hold) {
    states_.push_back(SmallState(step, rank));
    return *Inside::Of(*ranks[static_cast<std::size_t>(rank)])
                .Save(step, states_.back()->state(), states_.back()->state().values(), {}, hold);
  };
  const SaveHandle never = save(1, 0, milliseconds(1));
  const SaveHandle released = save(1, 1, minutes(10));
  Inside::Of(released).Release();

  EXPECT_EQ(never.WaitDurable(Soon()).code(), StatusCode::kDeadlineExceeded);
  const Status heard = released.WaitDurable(Soon());
  EXPECT_FALSE(heard.ok());
  EXPECT_THAT(heard.message(), HasSubstr("rank 0: step 1: written, but its commit was not released"));
  EXPECT_THAT(ListedSteps(*ranks[0]), IsEmpty());

  const SaveHandle a = save(2, 0, minutes(10));
  const SaveHandle b = save(2, 1, minutes(10));
  Inside::Of(b).Release();
  Inside::Of(a).Release();
  EXPECT_TRUE(a.WaitDurable(Soon()).ok()) << a.status();
  EXPECT_TRUE(b.WaitDurable(Soon()).ok()) << b.status();
}

}  // namespace
}  // namespace cairn
