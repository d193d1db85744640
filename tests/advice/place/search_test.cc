#include "advice/place/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "advice/place/networks.h"

namespace cairn {
namespace {

constexpr PlacementJob kThreeStages{.stages = 3, .gradient_bytes = 30, .activation_bytes = 20};

/// The least total of all placements, by trying each.
double BruteForce(PlacementModel& model) {
  const std::size_t size = model.devices() / model.stages();
  Groups groups(model.stages());
  double best = kNoEdge;
  const auto place = [&](const auto& self, std::size_t device) -> void {
    if (device == model.devices()) {
      best = std::min(best, model.Cost(groups).total());
      return;
    }
    for (std::vector<std::size_t>& group : groups) {
      if (group.size() == size) continue;
      const bool fresh = group.empty();
      group.push_back(device);
      self(self, device + 1);
      group.pop_back();
      if (fresh) break;  // The other empty ones are alike.
    }
  };
  place(place, 0);
  return best;
}

TEST(Search, ItFindsTheBestPlacementOfSmallNetworks) {
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    const Network network = RandomNetwork(9, 1, seed);
    PlacementModel model(network, kThreeStages);

    const FoundPlacement found = SearchPlacement(network, kThreeStages, {.seed = seed, .evaluations = 3'000});

    EXPECT_DOUBLE_EQ(found.cost.total(), BruteForce(model)) << "network " << seed;
  }
}

TEST(Search, ItIsNeverWorseThanTheSimpleOrdersHoweverShort) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const Network network = RandomNetwork(24, 1, seed);
    const PlacementJob job{.stages = 6, .gradient_bytes = 60, .activation_bytes = 20};
    PlacementModel model(network, job);

    const FoundPlacement found = SearchPlacement(network, job, {.seed = seed, .evaluations = 1});

    EXPECT_LE(found.cost.total(), model.Cost(Contiguous(24, 6)).total());
    EXPECT_LE(found.cost.total(), model.Cost(OnePerBlock(24, 6)).total());
  }
}

TEST(Search, ItIsNeverWorseThanThePresentPlacement) {
  const Network network = RandomNetwork(9, 1, 5);
  const FoundPlacement best = SearchPlacement(network, kThreeStages, {.evaluations = 3'000});

  const FoundPlacement kept = SearchPlacement(network, kThreeStages, {.evaluations = 1}, best.groups);

  EXPECT_LE(kept.cost.total(), best.cost.total());
}

TEST(Search, MoreEvaluationsImproveALargeNetwork) {
  const Network network = RandomNetwork(32, 1, 1);
  const PlacementJob job{.stages = 8, .gradient_bytes = 60, .activation_bytes = 20};

  const double first = SearchPlacement(network, job, {.evaluations = 1}).cost.total();
  const double later = SearchPlacement(network, job, {.evaluations = 5'000}).cost.total();

  EXPECT_LT(later, 0.8 * first);
}

TEST(Search, EqualSeedsGiveEqualPlacements) {
  const Network network = RandomNetwork(32, 1, 2);
  const PlacementJob job{.stages = 4, .gradient_bytes = 60, .activation_bytes = 20};
  const SearchOptions options{.seed = 3, .evaluations = 500};

  const FoundPlacement one = SearchPlacement(network, job, options);
  const FoundPlacement again = SearchPlacement(network, job, options);
  const FoundPlacement other = SearchPlacement(network, job, {.seed = 4, .evaluations = 500});

  EXPECT_EQ(one.groups, again.groups);
  EXPECT_NE(one.groups, other.groups);
}

TEST(Search, EachDeviceHasOnePlace) {
  for (const std::size_t stages : {1, 2, 5, 10}) {
    const Network network = RandomNetwork(10, 1, 4);
    const PlacementJob job{.stages = stages, .gradient_bytes = 60, .activation_bytes = 20};

    const FoundPlacement found = SearchPlacement(network, job, {.evaluations = 300});

    std::vector<std::size_t> devices;
    for (const std::vector<std::size_t>& group : found.groups) {
      EXPECT_EQ(group.size(), 10 / stages);
      devices.insert(devices.end(), group.begin(), group.end());
    }
    std::sort(devices.begin(), devices.end());
    EXPECT_THAT(devices, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
}

}  // namespace
}  // namespace cairn
