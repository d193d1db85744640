// Leftovers of a killed run are removed while the next one starts, and reused by it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "store/locks.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SweepTest : public testing::Test {
 protected:
  void SetUp() override { Leave(".retired-x"); }

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  void Leave(const std::string& folder) const {
    std::filesystem::create_directories(root() + "/" + folder);
    std::ofstream(root() + "/" + folder + "/shard-00000.safetensors") << std::string(1 << 20, 'x');
  }
  [[nodiscard]] Options NotRecycling() const {
    Options options = SmallOptions(root());
    options.recycle = false;
    return options;
  }
  [[nodiscard]] std::size_t Attempts() const { return plan_->Count({.op = IoOp::kMkdir, .path = ".attempt-"}); }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
};

TEST_F(SweepTest, DelaysOnlyTheFirstAttemptAndDrain) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = ".retired-x"});
  const auto checkpointer = OpenOrFail(NotRecycling(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  const auto state = SmallState(1);

  const auto save = checkpointer->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();

  EXPECT_EQ(save->WaitCaptured(Soon()), Status::Ok());
  EXPECT_EQ(Attempts(), 0U) << "it may need the space that the sweep frees";
  EXPECT_EQ(checkpointer->Drain(Deadline::In({})).code(), StatusCode::kDeadlineExceeded);
  gate.Release();
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(SweepTest, DrainWaitsForIt) {
  const auto checkpointer = OpenOrFail(NotRecycling());
  ASSERT_NE(checkpointer, nullptr);

  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(SweepTest, EndsBeforeTheCheckpointer) {
  auto checkpointer = OpenOrFail(NotRecycling());
  ASSERT_NE(checkpointer, nullptr);

  AbandonAtOnce(*checkpointer);
  checkpointer.reset();

  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(SweepTest, OtherRanksWaitForItToo) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = ".retired-x"});
  const auto ranks = OpenRanks(2, NotRecycling(), [this](int /*rank*/) { return Through(plan_); });
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  const auto first = SmallState(1, 0);
  const auto second = SmallState(1, 1);

  const auto save = ranks[1]->Save(1, second->state());
  const auto coordinators = ranks[0]->Save(1, first->state());
  ASSERT_TRUE(save.ok() && coordinators.ok());

  EXPECT_EQ(save->WaitCaptured(Soon()), Status::Ok());
  EXPECT_EQ(coordinators->WaitCaptured(Soon()), Status::Ok());
  EXPECT_EQ(Attempts(), 0U);
  gate.Release();
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
}

TEST_F(SweepTest, SaveGivenUpMeanwhileFailsOnAllRanks) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = ".retired-x"});
  const auto ranks = OpenRanks(2, NotRecycling(), [this](int /*rank*/) { return Through(plan_); });
  ASSERT_EQ(ranks.size(), 2U);
  const auto state = SmallState(1, 1);

  const auto save = ranks[1]->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(ranks[0]->GiveUp(1, Status(StatusCode::kCancelled, "out of heart")).ok());

  EXPECT_THAT(save->WaitDurable(Soon()).message(), HasSubstr("out of heart"));
  gate.Release();
}

TEST_F(SweepTest, SaveAbandonedMeanwhileLeavesNothing) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = ".retired-x"});
  auto checkpointer = OpenOrFail(NotRecycling(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  const auto state = SmallState(1);
  const auto save = checkpointer->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  AbandonAtOnce(*checkpointer);
  std::thread closer([&] { checkpointer.reset(); });
  EXPECT_EQ(save->WaitDurable(Soon()).code(), StatusCode::kDeadlineExceeded);
  gate.Release();
  closer.join();

  EXPECT_EQ(Attempts(), 0U);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(SweepTest, ReportsWhatItLeaves) {
  Mutex mutex;
  std::vector<std::string> told;
  Options options = NotRecycling();
  options.on_event = [&](const Event& event) {
    MutexLock lock(mutex);
    if (event.severity != Severity::kWarning) return;
    told.push_back(event.message);
    EXPECT_FALSE(event.step.has_value()) << "it concerns no step";
  };
  plan_->Fail({.op = IoOp::kUnlink, .path = ".retired-x"}, EIO);

  const auto checkpointer = OpenOrFail(options, Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  MutexLock lock(mutex);
  EXPECT_THAT(told, Contains(HasSubstr(".retired-x/shard-00000.safetensors")));
  EXPECT_THAT(Leftovers(root()), ElementsAre(".retired-x"));
}

// All saves that waited begin at once, and must not take each other's spares.
TEST_F(SweepTest, FirstSavesOverwriteWhatItFound) {
  const UniqueFd probe(::open((dir_ / "probe").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (const Status status = TakeLease(probe, "a file here"); !status.ok()) GTEST_SKIP() << status;
  Leave(".retired-y");
  Leave(".retired-z");
  std::ofstream(root() + "/.retired-z/manifest.json") << "{";
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = ".retired-z"});
  const auto checkpointer = OpenOrFail(SmallOptions(root()), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  std::vector<std::unique_ptr<Tensors>> states;
  std::vector<SaveHandle> saves;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    states.push_back(SmallState(step));
    const auto save = checkpointer->Save(step, states.back()->state());
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }

  gate.Release();

  for (const SaveHandle& save : saves) {
    EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
    EXPECT_TRUE(save.stats().recycled) << checkpointer->stats().not_recycled_reason;
  }
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

}  // namespace
}  // namespace cairn
