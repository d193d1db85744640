#include "schedule.h"

#include <gtest/gtest.h>

namespace cairn::trainer {
namespace {

TEST(Schedule, ConstantIsOneAndNeedsNoEnd) {
  const Schedule schedule;

  EXPECT_EQ(schedule.Factor(1), 1);
  EXPECT_EQ(schedule.Factor(1'000'000), 1);
}

TEST(Schedule, LastStepOfTheWarmUpHasTheFullRate) {
  const Schedule schedule{.warmup = 4};

  EXPECT_EQ(schedule.Factor(1), 0.25);
  EXPECT_EQ(schedule.Factor(4), 1);
  EXPECT_EQ(schedule.Factor(5), 1);
}

TEST(Schedule, LinearFallsToZeroAfterTheWarmUp) {
  const Schedule schedule{.decay = Schedule::Decay::kLinear, .warmup = 2, .steps = 6};

  EXPECT_EQ(schedule.Factor(2), 1);
  EXPECT_EQ(schedule.Factor(3), 1);
  EXPECT_EQ(schedule.Factor(6), 0.25);
  EXPECT_EQ(schedule.Factor(7), 0);
}

TEST(Schedule, CosineIsHalfInTheMiddle) {
  const Schedule schedule{.decay = Schedule::Decay::kCosine, .steps = 10};

  EXPECT_EQ(schedule.Factor(1), 1);
  EXPECT_NEAR(schedule.Factor(6), 0.5, 1e-12);
  EXPECT_GT(schedule.Factor(10), 0);
}

TEST(Schedule, TextDiffersForDifferentSchedules) {
  EXPECT_EQ(Schedule{}.ToText(), "constant");
  // A constant schedule does not depend on its end, so a run may be extended.
  EXPECT_EQ((Schedule{.steps = 10}.ToText()), "constant");
  EXPECT_EQ((Schedule{.decay = DecayFromName("cosine"), .warmup = 2, .steps = 10}.ToText()),
            "cosine steps=10 warmup=2");
}

}  // namespace
}  // namespace cairn::trainer
