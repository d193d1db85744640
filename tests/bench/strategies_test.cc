#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/mutex.h"
#include "bench/harness/restore_check.h"
#include "bench/strategy_suite.h"
#include "bench/workplace.h"

namespace cairn::bench {

class WritingStrategyTest : public StrategyTest {};

namespace {

using testing::HasSubstr;

TEST_P(StrategyTest, RestoresTheLastStepAfterTheStateIsOverwritten) {
  SmallWorkplace at(directory_.path());
  Mutex mutex;
  std::set<std::uint64_t> durable;
  (*at).durable = [&](std::uint64_t step) {
    MutexLock lock(mutex);
    durable.insert(step);
  };
  auto strategy = at.Open(GetParam());
  ASSERT_NE(strategy, nullptr);
  for (std::uint64_t step = 1; step <= 5; ++step) ASSERT_TRUE(TrainAndSave(*strategy, at.state(), step).ok());
  ASSERT_TRUE(strategy->BeforeUpdate().ok());
  ASSERT_TRUE(at.state().Update(6).ok());

  ASSERT_TRUE(strategy->Drain().ok());
  strategy.reset();

  EXPECT_EQ(durable.count(5), 1U);
  EXPECT_EQ(CheckRestored(*FindStrategy(GetParam()), *at, 5), Status::Ok());
}

TEST_P(StrategyTest, ContinuesAfterARestart) {
  SmallWorkplace at(directory_.path());
  for (std::uint64_t step = 1; step <= 4; ++step) {
    auto strategy = at.Open(GetParam());
    ASSERT_NE(strategy, nullptr);
    ASSERT_EQ(strategy->Restore().ok(), step > 1);
    ASSERT_TRUE(TrainAndSave(*strategy, at.state(), step).ok());
    ASSERT_TRUE(strategy->Drain().ok());
  }

  EXPECT_EQ(CheckRestored(*FindStrategy(GetParam()), *at, 4), Status::Ok());
}

TEST_P(StrategyTest, HasNothingToRestoreAtFirst) {
  SmallWorkplace at(directory_.path());
  auto strategy = at.Open(GetParam());
  ASSERT_NE(strategy, nullptr);

  EXPECT_EQ(strategy->Restore().status().code(), StatusCode::kNotFound);
}

TEST_P(WritingStrategyTest, IsLimitedByTheEmulatedDisk) {
  SmallWorkplace at(directory_.path());
  (*at).disk = RateLimitedDisk::Make(40'000'000);
  auto strategy = at.Open(GetParam());
  ASSERT_NE(strategy, nullptr);
  const auto begin = Deadline::Clock::now();

  ASSERT_TRUE(TrainAndSave(*strategy, at.state(), 1).ok());
  ASSERT_TRUE(strategy->Drain().ok());

  const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
  EXPECT_GE(took.count(), static_cast<double>(SmallWorkplace::kBytes) / 40e6);
  EXPECT_GE((*at).disk->bytes(), SmallWorkplace::kBytes);
}

const auto kWriting = testing::Values("sync", "checkfreq", "gpm", "pccheck", "cairn");
INSTANTIATE_TEST_SUITE_P(Writing, StrategyTest, kWriting, [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(CairnMemory, StrategyTest, testing::Values("cairn-memory"),
                         [](const auto&) { return "Kept"; });
INSTANTIATE_TEST_SUITE_P(Writing, WritingStrategyTest, kWriting, [](const auto& test) { return test.param; });

TEST(FindStrategyTest, ListsTheStrategiesForAnUnknownOne) {
  const Status status = FindStrategy("tape").status();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tape"));
  EXPECT_THAT(status.message(),
              HasSubstr("none, sync, torch-save, checkfreq, gpm, gemini, pccheck, cairn, cairn-memory"));
}

TEST(RestoreCheckTest, FindsAnOlderStepAFlippedByteAndNoCheckpoint) {
  const TempDir directory;
  SmallWorkplace at(directory.path());
  const StrategyKind kind = *FindStrategy("sync");
  {
    auto strategy = at.Open("sync");
    ASSERT_NE(strategy, nullptr);
    ASSERT_TRUE(TrainAndSave(*strategy, at.state(), 1).ok());
  }
  ASSERT_EQ(CheckRestored(kind, *at, 1), Status::Ok());

  const Status older = CheckRestored(kind, *at, 2);
  {
    std::fstream file(directory / "checkpoint", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 1234567);
    file.put('x');
  }
  const Status flipped = CheckRestored(kind, *at, 1);
  std::filesystem::remove(directory / "checkpoint");
  const Status none = CheckRestored(kind, *at, 1);

  EXPECT_EQ(older.code(), StatusCode::kCorrupt);
  EXPECT_THAT(older.message(), HasSubstr("expected step 2 to be restored, found step 1"));
  EXPECT_EQ(flipped.code(), StatusCode::kCorrupt);
  EXPECT_THAT(flipped.message(), HasSubstr("not the state of step 1"));
  EXPECT_EQ(none.code(), StatusCode::kCorrupt);
  EXPECT_THAT(none.message(), HasSubstr("NotFound"));
}

TEST(TrainingStateTest, MatchesOnlyItsStep) {
  const auto gpu = EmulateGpu(0);
  const auto state = *TrainingState::Make(*gpu, 1U << 20, 3);
  ExpectOfOneStepAlone(*state);
  state->memory()[(1U << 20) - 1] ^= std::byte{1};
  EXPECT_FALSE(*state->Is(7));
  EXPECT_FALSE(TrainingState::Make(*gpu, 1000, 1).ok());
  EXPECT_FALSE(TrainingState::Make(*gpu, 4096, 9).ok());
}

}  // namespace
}  // namespace cairn::bench
