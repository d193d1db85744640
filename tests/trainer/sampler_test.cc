#include "sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "ranks/share.h"

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

TEST(Share, OfEachRankIsWhatOneRankDraws) {
  Sampler alone(23, {.shuffle_seed = 7});
  Sampler first(23, {.shuffle_seed = 7});
  Sampler second(23, {.shuffle_seed = 7});

  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(NextShare(first, 7, 0, 2).samples, alone.Next(7));
    const DataPosition between = alone.position();
    const Share share = NextShare(second, 7, 1, 2);
    EXPECT_EQ(share.samples, alone.Next(7));
    EXPECT_EQ(SeedOf(share.from), SeedOf(between));
    EXPECT_EQ(second.position().position, alone.position().position);
    EXPECT_EQ(first.position().epoch, alone.position().epoch);
  }
}

TEST(Share, EachPositionHasAnotherSeed) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t shuffle = 0; shuffle < 4; ++shuffle) {
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      for (std::uint64_t position = 0; position < 100; ++position) {
        seeds.insert(SeedOf({.shuffle_seed = shuffle, .epoch = epoch, .position = position}));
      }
    }
  }
  EXPECT_EQ(seeds.size(), 1600U);
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
