#include "advice/place/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "advice/place/networks.h"

namespace cairn {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// By trying every order.
double BruteForcePath(const std::vector<double>& cross, std::size_t stages) {
  std::vector<std::size_t> order(stages);
  std::iota(order.begin(), order.end(), std::size_t{0});
  double best = kNoEdge;
  do {
    double sum = 0;
    for (std::size_t i = 1; i < stages; ++i) sum += cross[order[i - 1] * stages + order[i]];
    best = std::min(best, sum);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(Placement, TheSimpleOrders) {
  EXPECT_THAT(Contiguous(6, 2), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  EXPECT_THAT(OnePerBlock(6, 2), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
}

TEST(Placement, TheCheapestPathIsExact) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t stages = 1 + random() % 7;
    std::vector<double> cross(stages * stages);
    for (std::size_t p = 0; p < stages; ++p) {
      for (std::size_t q = 0; q < p; ++q) cross[p * stages + q] = cross[q * stages + p] = random() % 50;
    }

    const StagePath path = CheapestPath(cross, stages);

    EXPECT_EQ(path.seconds, BruteForcePath(cross, stages)) << "round " << round;
    double sum = 0;
    for (std::size_t i = 1; i < stages; ++i) sum += cross[path.order[i - 1] * stages + path.order[i]];
    EXPECT_EQ(sum, path.seconds);
    std::vector<std::size_t> order = path.order;
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < stages; ++i) EXPECT_EQ(order[i], i);
  }
}

TEST(Placement, ItsCostByHand) {
  // Links of 10 bytes a second and 1 s; that of d0 and d1 has 100, that of d1 and d2 has 2.
  Network network = AlikeNetwork(4, 1, {.delay_seconds = 1, .bytes_per_second = 10});
  network.SetLink(0, 1, {.delay_seconds = 1, .bytes_per_second = 100});
  network.SetLink(1, 2, {.delay_seconds = 1, .bytes_per_second = 2});
  PlacementModel model(network, {.stages = 2, .gradient_bytes = 200, .activation_bytes = 20});

  const PlacementCost cost = model.Cost({{0, 1}, {2, 3}});

  // d2 and d3 send half of the gradients each: 2 (1 + 100 / 10). d0 pairs with d2 and d1 with d3: 1 + 20 / 10; the
  // other way would take d1 and d2 11 s.
  EXPECT_DOUBLE_EQ(model.Data(std::vector<std::size_t>{0, 1}), 4);
  EXPECT_DOUBLE_EQ(cost.data, 22);
  EXPECT_DOUBLE_EQ(cost.pipeline, 3);
  EXPECT_DOUBLE_EQ(cost.total(), 28);
}

TEST(Placement, ADeviceOfALargeStageSendsToAllOthers) {
  const Network network = AlikeNetwork(4, 1, {.delay_seconds = 0.5, .bytes_per_second = 10});
  PlacementModel model(network, {.stages = 1, .gradient_bytes = 80, .activation_bytes = 20});

  const PlacementCost cost = model.Cost(Contiguous(4, 1));

  EXPECT_DOUBLE_EQ(cost.data, 3 * 2 * (0.5 + 80.0 / 4 / 10));
  EXPECT_EQ(cost.pipeline, 0);
}

TEST(Placement, NearFallsWithEachDeviceThatGetsANearOne) {
  // d0 to d2 and d1 to d3 take 1 s, all others 5 s.
  Network network = AlikeNetwork(6, 1, {.delay_seconds = 5, .bytes_per_second = 1});
  network.SetLink(0, 2, {.delay_seconds = 1, .bytes_per_second = 1});
  network.SetLink(1, 3, {.delay_seconds = 1, .bytes_per_second = 1});
  PlacementModel model(network, {.stages = 3});
  const std::vector<std::size_t> from{0, 1};

  EXPECT_DOUBLE_EQ(model.Near(from, std::vector<std::size_t>{4, 5}), 5);
  EXPECT_DOUBLE_EQ(model.Near(from, std::vector<std::size_t>{2, 5}), std::sqrt(13));
  EXPECT_DOUBLE_EQ(model.Near(from, std::vector<std::size_t>{3, 2}), 1);
  EXPECT_EQ(model.Cross(from, std::vector<std::size_t>{2, 5}), 5);
}

TEST(Placement, PipelinesFollowThePathAndTheMatchings) {
  const Network network = RandomNetwork(12, 1, 3);
  PlacementModel model(network, {.stages = 4, .gradient_bytes = 10, .activation_bytes = 10});
  const Groups groups = Contiguous(12, 4);

  const Groups ordered = model.InOrder(groups);

  double pipeline = 0;
  for (std::size_t p = 1; p < ordered.size(); ++p) {
    double slowest = 0;
    for (std::size_t r = 0; r < 3; ++r) slowest = std::max(slowest, model.Send(ordered[p - 1][r], ordered[p][r]));
    pipeline += slowest;
  }
  EXPECT_THAT(pipeline, DoubleNear(model.Cost(groups).pipeline, 1e-12));
  Groups same = ordered;
  for (std::vector<std::size_t>& group : same) std::sort(group.begin(), group.end());
  EXPECT_THAT(same, UnorderedElementsAre(groups[0], groups[1], groups[2], groups[3]));
}

}  // namespace
}  // namespace cairn
