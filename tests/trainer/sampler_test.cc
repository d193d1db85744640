#include "sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace cairn::trainer {
namespace {

using ::testing::ElementsAre;

TEST(Sampler, EpochDrawsEverySampleOnce) {
  Sampler sampler(100, {.shuffle_seed = 7});

  std::vector<std::uint64_t> drawn;
  for (int batch = 0; batch < 10; ++batch) {
    const auto next = sampler.Next(10);
    drawn.insert(drawn.end(), next.begin(), next.end());
  }

  EXPECT_FALSE(std::is_sorted(drawn.begin(), drawn.end()));
  std::sort(drawn.begin(), drawn.end());
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(drawn[i], i);
  EXPECT_EQ(sampler.position().position, 100U);
}

TEST(Sampler, ResumingFromAPositionContinuesTheSequence) {
  Sampler first(23, {.shuffle_seed = 7});
  for (int batch = 0; batch < 5; ++batch) first.Next(7);

  Sampler resumed(23, first.position());

  for (int batch = 0; batch < 20; ++batch) EXPECT_EQ(resumed.Next(7), first.Next(7));
}

TEST(Sampler, BatchMayExtendIntoTheNextEpoch) {
  Sampler sampler(3, {.shuffle_seed = 1});

  const auto drawn = sampler.Next(5);

  EXPECT_EQ(drawn.size(), 5U);
  EXPECT_EQ(sampler.position().epoch, 1U);
  EXPECT_EQ(sampler.position().position, 2U);
}

TEST(Sampler, OrderIsTheSameOnEveryMachine) {
  EXPECT_THAT(Sampler(5, {.shuffle_seed = 1}).Next(5), ElementsAre(4, 3, 1, 0, 2));
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  Sampler sampler(50, {.shuffle_seed = 1});
  const auto first = sampler.Next(50);

  EXPECT_NE(sampler.Next(50), first);
  EXPECT_NE(Sampler(50, {.shuffle_seed = 2}).Next(50), first);
}

TEST(Sampler, OrderByNumberDoesNotShuffle) {
  Sampler sampler(5, {.shuffle_seed = 1}, Order::kByNumber);

  EXPECT_THAT(sampler.Next(4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sampler.Next(4), ElementsAre(4, 0, 1, 2));
  EXPECT_THAT(Sampler(5, sampler.position(), Order::kByNumber).Next(2), ElementsAre(3, 4));
}

TEST(Sampler, RefusesAPositionOutsideTheData) {
  EXPECT_THROW(Sampler(10, {.position = 11}), std::invalid_argument);
  EXPECT_THROW(Sampler(0, {}), std::invalid_argument);
}

}  // namespace
}  // namespace cairn::trainer
