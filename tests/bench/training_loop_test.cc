#include "bench/harness/training_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/accounting.h"
#include "bench/harness/prepare.h"

namespace cairn::bench {
namespace {

// A clock that advances when the loop waits, and when a strategy takes time.
struct FakeTime {
  double now = 0;
  [[nodiscard]] LoopClock Clock() {
    return {.now = [this] { return now; }, .wait_until = [this](double at) { now = std::max(now, at); }};
  }
};

// Takes 0.3 s in Save and 0.2 s in the update after it, and records its calls.
class SlowStrategy : public Strategy {
 public:
  SlowStrategy(FakeTime& time, const TrainingState& state, SaveLog& log) : time_(time), state_(state), log_(log) {}

  Status Save(std::uint64_t step) override {
    calls.push_back("save " + std::to_string(step) + (*state_.Is(step) ? "" : " of another state"));
    time_.now += 0.3;
    saved_ = step;
    return step == fails_at ? Status(StatusCode::kIoError, "as asked") : Status::Ok();
  }
  Status BeforeUpdate() override {
    calls.emplace_back("update");
    if (saved_ == 0) return {};
    time_.now += 0.2;
    log_.Durable(saved_, time_.now);
    saved_ = 0;
    return {};
  }
  Status Drain() override {
    time_.now += 0.7;
    if (saved_ != 0) log_.Durable(saved_, time_.now);
    return {};
  }
  Result<std::uint64_t> Restore() override { return saved_; }

  std::vector<std::string> calls;
  std::uint64_t fails_at = 0;

 private:
  FakeTime& time_;
  const TrainingState& state_;
  SaveLog& log_;
  std::uint64_t saved_ = 0;
};

constexpr LoopSettings kSettings{.iteration_seconds = 1, .update_seconds = 0.25, .every = 2, .iterations = 4};

class TrainingLoopTest : public testing::Test {
 protected:
  TrainingLoopTest() { EXPECT_TRUE(state_->Initialize().ok()); }
  Result<LoopRecord> Run() { return RunLoop(kSettings, clock_, compute_, strategy_, log_); }

  FakeTime time_;
  SaveLog log_;
  const std::unique_ptr<Gpu> gpu_ = EmulateGpu(0);
  const std::unique_ptr<TrainingState> state_ = *TrainingState::Make(*gpu_, 1U << 16, 2);
  SlowStrategy strategy_{time_, *state_, log_};
  const LoopClock clock_ = time_.Clock();
  PacedCompute compute_{kSettings, clock_, *state_};
};

TEST_F(TrainingLoopTest, StallsAreTheTimeOfSaveAndUpdate) {
  const Result<LoopRecord> record = Run();

  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(strategy_.calls, (std::vector<std::string>{"update", "update", "save 2", "update", "update", "save 4"}));
  EXPECT_TRUE(*state_->Is(4));
  ASSERT_EQ(record->stalls.size(), 4U);
  const std::vector<double> stalls{0, 0.3, 0.2, 0.3};
  for (std::size_t i = 0; i < stalls.size(); ++i) EXPECT_NEAR(record->stalls[i], stalls[i], 1e-9);
  EXPECT_NEAR(record->end, 4.8, 1e-9);
  EXPECT_NEAR(record->drained, 5.5, 1e-9);
  EXPECT_NEAR(record->update_late, 0, 1e-9);

  const Accounts accounts = Account(*record, kSettings);
  EXPECT_NEAR(accounts.iterations_per_second, 4 / 4.8, 1e-9);
  EXPECT_NEAR(accounts.slowdown, 1.2, 1e-9);
  EXPECT_NEAR(accounts.stall_total, 0.8, 1e-9);
  EXPECT_EQ(accounts.durable, 2U);
  EXPECT_NEAR(accounts.first_to_durable, 1.25, 1e-9);  // Saved at 2, durable in the update at 3.05 + 0.2.
  EXPECT_NEAR(accounts.to_durable_p50, 1, 1e-9);       // Saved at 4.5, durable when drained.
  EXPECT_NEAR(accounts.drain, 0.7, 1e-9);
  EXPECT_NEAR(accounts.age_max, 3.25, 1e-9);
}

TEST_F(TrainingLoopTest, SavesAgainShortlyAfter) {
  const LoopSettings settings{.every = 5, .again = 2};
  std::vector<std::uint64_t> saved;

  for (std::uint64_t step = 1; step <= 12; ++step) {
    if (SavesAfter(settings, step)) saved.push_back(step);
  }

  EXPECT_EQ(saved, (std::vector<std::uint64_t>{5, 7, 10, 12}));
  EXPECT_FALSE(SavesAfter({.every = 0}, 3));
}

TEST_F(TrainingLoopTest, AFailedSaveEndsTheRun) {
  strategy_.fails_at = 2;

  const Result<LoopRecord> record = Run();

  EXPECT_EQ(record.status().code(), StatusCode::kIoError);
  EXPECT_EQ(strategy_.calls.back(), "save 2");
}

TEST(AccountingTest, QuantilesUseTheNearestRank) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({3, 1, 2, 4}, 0.5), 2);
  EXPECT_EQ(Quantile({3, 1, 2, 4}, 0.99), 4);
  EXPECT_EQ(Quantile({3, 1, 2, 4}, 0), 1);
}

TEST(AccountingTest, MaxAgeIsTheOldestAgeOfTheNewestDurableStep) {
  const SaveRecord first{.step = 1, .started = 1, .returned = 1, .durable = 3};
  const SaveRecord overtaken{.step = 2, .started = 2, .returned = 2, .durable = {}};
  const SaveRecord late{.step = 3, .started = 4, .returned = 4, .durable = 9};

  EXPECT_EQ(MaxAge({}, 0, 7), 7);
  EXPECT_EQ(MaxAge({first}, 0, 4), 3);                      // From the start until it was durable.
  EXPECT_EQ(MaxAge({first, overtaken}, 0, 7), 6);           // At the end.
  EXPECT_EQ(MaxAge({first, overtaken, late}, 0, 10), 8);    // Until the late one was durable.
  EXPECT_EQ(MaxAge({first, overtaken, late}, 9.5, 10), 6);  // The maximum was before the late one.
  EXPECT_EQ(MaxAge({first, overtaken, late}, 0, 8), 7);     // Durable only after the end.
}

TEST(AccountingTest, WarmupIsExcluded) {
  LoopRecord record{.stalls = {5, 0, 1}, .ends = {6, 7, 9}, .saves = {}, .end = 9};
  record.saves.push_back({.step = 1, .started = 1, .returned = 6, .durable = 6.5});
  record.saves.push_back({.step = 3, .started = 8, .returned = 9, .durable = 9.5});
  LoopSettings settings = kSettings;
  settings.warmup = 1;

  const Accounts accounts = Account(record, settings);

  EXPECT_NEAR(accounts.iterations_per_second, 2 / 3.0, 1e-9);
  EXPECT_NEAR(accounts.slowdown, 1.5, 1e-9);
  EXPECT_EQ(accounts.stall_max, 1);
  EXPECT_EQ(accounts.first_to_durable, 5.5);
  EXPECT_EQ(accounts.to_durable_p50, 1.5);
  EXPECT_EQ(accounts.age_max, 8);
}

TEST(AccountingTest, AnOvertakenSaveHasNoTime) {
  LoopRecord record{
      .stalls = {0, 0}, .ends = {1, 2}, .saves = {{.step = 1, .started = 1, .returned = 1, .durable = {}}}, .end = 2};
  record.saves.push_back({.step = 2, .started = 2, .returned = 2, .durable = 2.5});

  const Accounts accounts = Account(record, kSettings);

  EXPECT_EQ(accounts.durable, 1U);
  EXPECT_EQ(accounts.first_to_durable, 0);
  EXPECT_EQ(accounts.to_durable, (std::vector<double>{-1, 0.5}));
  EXPECT_EQ(accounts.to_durable_p50, 0.5);
}

// Every look at it takes time: `slow` for so many looks, and `quick` after them.
LoopClock DisturbedClock(int looks, double slow, double quick) {
  return {.now = [looks, slow, quick, now = 0.0]() mutable { return now += looks-- > 0 ? slow : quick; },
          .wait_until = {}};
}

TEST(MeasureUpdateTest, AMachineThatIsSlowForAWhileKeepsThePace) {
  const auto gpu = EmulateGpu(0);
  const auto state = *TrainingState::Make(*gpu, 4096, 1);
  ASSERT_TRUE(state->Initialize().ok());

  const Result<double> given = MeasureUpdate(*state, 0, 0.4, DisturbedClock(20, 0.2, 0.05));

  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_NEAR(*given, 0.1, 1e-9);
  EXPECT_TRUE(*state->Is(0));
}

TEST(MeasureUpdateTest, AMachineThatIsTooSlowIsRefusedWithWhatWasFound) {
  const auto gpu = EmulateGpu(0);
  const auto state = *TrainingState::Make(*gpu, 4096, 1);

  const LoopClock slow_for_ever = DisturbedClock(1000, 0.2, 0.05);
  const LoopClock hopeless = DisturbedClock(8, 0.5, 0.05);  // The three first updates say enough.
  for (const LoopClock& clock : {slow_for_ever, hopeless}) {
    const Result<double> given = MeasureUpdate(*state, 0, 0.4, clock);

    ASSERT_FALSE(given.ok());
    EXPECT_EQ(given.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(given.status().message().find("rewriting 4096 bytes takes"), std::string::npos) << given.status();
  }
}

}  // namespace
}  // namespace cairn::bench
