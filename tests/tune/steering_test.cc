#include "tune/steering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace cairn {
namespace {

using ::testing::HasSubstr;

using Seconds = std::chrono::duration<double>;

/// A job with simulated time: each step takes `iteration`, the first step of each save `stall` more, and a save is
/// durable `write` after its begin.
class Job {
 public:
  explicit Job(const TuneGoal& goal) : steering_(goal) {}

  double iteration = 0.1;
  double stall = 0;
  double write = 0.05;
  bool fails = false;
  std::function<double(std::uint64_t step)> jitter = [](std::uint64_t) { return 0.0; };

  /// The steps that were saved.
  std::vector<std::uint64_t> Run(std::uint64_t steps) {
    std::vector<std::uint64_t> saved;
    for (std::uint64_t i = 0; i < steps; ++i) {
      ++step_;
      Pass(iteration + jitter(step_));
      EndWhatIsDurable();
      if (!steering_.ShouldSave(step_, now_)) continue;
      saved.push_back(step_);
      steering_.SaveBegun(step_);
      begun_.push_back(now_);
      Pass(stall);
    }
    return saved;
  }
  void Pass(double seconds) { now_ += std::chrono::duration_cast<Steering::Time::duration>(Seconds(seconds)); }
  void Restart(std::uint64_t step) { step_ = step; }
  Steering& steering() { return steering_; }
  [[nodiscard]] std::uint64_t interval() const { return steering_.choice() ? steering_.choice()->iterations : 0; }

 private:
  void EndWhatIsDurable() {
    while (!begun_.empty()) {
      const auto begins = std::max(begun_.front(), disk_free_);
      const auto end = begins + std::chrono::duration_cast<Steering::Time::duration>(Seconds(write));
      if (end > now_) return;
      if (!fails) disk_free_ = end;
      steering_.SaveEnded(begun_.front(), end, !fails);
      begun_.erase(begun_.begin());
    }
  }

  Steering steering_;
  std::uint64_t step_ = 0;
  Steering::Time now_{std::chrono::hours(1)};
  Steering::Time disk_free_{};
  std::vector<Steering::Time> begun_;
};

TuneGoal SomeGoal() { return {.slowdown = 0.01, .mtbf_seconds = 7200, .restart_seconds = 30}; }

TEST(Steering, TimesIterationsThenMeasuresOneSaveThenSavesAsTheDiskPermits) {
  Job job(SomeGoal());
  job.write = 0.95;
  EXPECT_THAT(job.steering().why(), HasSubstr("timing iterations"));

  const std::vector<std::uint64_t> saved = job.Run(100);

  ASSERT_GE(saved.size(), 3U);
  EXPECT_EQ(saved[0], 7U) << "one to begin with, one with one-time work, five that are timed";
  EXPECT_GT(saved[1] - saved[0], 9U) << "not before the first save is durable";
  EXPECT_EQ(job.interval(), 11U) << "0.95 s plus a tenth, in iterations of 0.1 s";
  for (std::size_t i = 2; i < saved.size(); ++i) EXPECT_EQ(saved[i] - saved[i - 1], 11U);
  EXPECT_NEAR(job.steering().goal().iteration_seconds, 0.1, 1e-6);
  EXPECT_EQ(job.steering().choice()->bound, Bound::kDisk);
  EXPECT_THAT(job.steering().why(), HasSubstr("the disk"));
}

TEST(Steering, FreeSavesAreMadeInEveryIteration) {
  Job job(SomeGoal());

  static_cast<void>(job.Run(20));

  EXPECT_EQ(job.interval(), 1U);
  EXPECT_EQ(job.Run(50).size(), 50U);
}

TEST(Steering, StallIsMeasuredAndKeptWithinTheAllowedSlowdown) {
  Job job(SomeGoal());
  job.stall = 0.02;

  static_cast<void>(job.Run(2000));

  EXPECT_NEAR(job.steering().cost().stall, 0.02, 1e-3);
  EXPECT_EQ(job.steering().choice()->bound, Bound::kFailures);
  EXPECT_LE(job.steering().choice()->slowdown, 0.01);
}

TEST(Steering, IntervalFollowsAChangingStall) {
  Job job({.slowdown = 0.01, .mtbf_seconds = 60});
  static_cast<void>(job.Run(100));
  EXPECT_EQ(job.interval(), 1U);

  job.stall = 0.02;
  static_cast<void>(job.Run(1000));
  EXPECT_NEAR(static_cast<double>(job.interval()), 20, 1) << "0.02 s are one per cent of 20 iterations";

  job.stall = 0;
  static_cast<void>(job.Run(1000));
  EXPECT_EQ(job.interval(), 1U);
}

TEST(Steering, IntervalFollowsASlowingDisk) {
  Job job(SomeGoal());
  job.write = 0.2;
  static_cast<void>(job.Run(300));
  EXPECT_EQ(job.interval(), 3U);

  job.write = 2;
  static_cast<void>(job.Run(3000));

  EXPECT_EQ(job.interval(), 22U);
}

TEST(Steering, OccasionalEvaluationsDoNotCount) {
  Job job(SomeGoal());
  job.write = 0.95;
  job.jitter = [](std::uint64_t step) { return step % 50 == 0 ? 30.0 : 0.0; };

  static_cast<void>(job.Run(1000));

  EXPECT_NEAR(job.steering().goal().iteration_seconds, 0.1, 1e-6);
  EXPECT_EQ(job.steering().cost().stall, 0);
  EXPECT_EQ(job.interval(), 11U);
}

TEST(Steering, FailedSaveIsNotMeasuredAndRetried) {
  Job job(SomeGoal());
  job.fails = true;

  EXPECT_GT(job.Run(20).size(), 5U);
  EXPECT_FALSE(job.steering().choice().has_value());
  EXPECT_FALSE(job.steering().why().empty());

  job.fails = false;
  static_cast<void>(job.Run(20));
  EXPECT_EQ(job.interval(), 1U);
}

TEST(Steering, RepeatedStepGetsTheSameAnswerAndCountsOnce) {
  Steering steering(SomeGoal());
  Steering::Time now{std::chrono::hours(1)};
  for (std::uint64_t step = 1; step <= 7; ++step) {
    now += std::chrono::milliseconds(100);
    const bool once = steering.ShouldSave(step, now);
    EXPECT_EQ(steering.ShouldSave(step, now + std::chrono::milliseconds(40)), once);
  }
  EXPECT_NEAR(steering.goal().iteration_seconds, 0.1, 1e-9);
}

TEST(Steering, CallsEveryFewStepsCountTheSteps) {
  Steering steering(SomeGoal());
  Steering::Time now{std::chrono::hours(1)};
  for (std::uint64_t step = 10; step <= 100; step += 10) {
    now += std::chrono::seconds(1);
    static_cast<void>(steering.ShouldSave(step, now));
  }

  EXPECT_NEAR(steering.goal().iteration_seconds, 0.1, 1e-9);
}

TEST(Steering, AfterARestoreTheIntervalCountsFromItsStep) {
  Job job(SomeGoal());
  job.write = 0.95;
  static_cast<void>(job.Run(100));
  ASSERT_EQ(job.interval(), 11U);

  job.Restart(40);
  job.Pass(60);
  const std::vector<std::uint64_t> saved = job.Run(30);

  ASSERT_FALSE(saved.empty());
  EXPECT_EQ(saved[0], 52U) << "eleven after the first step after the restore";
  EXPECT_NEAR(job.steering().cost().stall, 0, 1e-9) << "the restore is no stall";
}

TEST(Steering, SavesMadeByTheCallerCount) {
  Job job(SomeGoal());
  job.write = 0.95;
  static_cast<void>(job.Run(100));
  const std::vector<std::uint64_t> saved = job.Run(5);
  const std::uint64_t own = 105;

  job.steering().SaveBegun(own);

  const std::vector<std::uint64_t> next = job.Run(11);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0], own + 11);
}

}  // namespace
}  // namespace cairn
