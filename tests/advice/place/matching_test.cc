#include "advice/place/matching.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace cairn {
namespace {

using ::testing::ElementsAre;

std::optional<Matching> Match(const std::vector<double>& costs, std::size_t size) {
  return BottleneckMatcher().Match(costs, size);
}

/// By trying every permutation.
double BruteForce(const std::vector<double>& costs, std::size_t size) {
  std::vector<std::size_t> columns(size);
  std::iota(columns.begin(), columns.end(), std::size_t{0});
  double best = kNoEdge;
  do {
    double most = 0;
    for (std::size_t row = 0; row < size; ++row) most = std::max(most, costs[row * size + columns[row]]);
    best = std::min(best, most);
  } while (std::next_permutation(columns.begin(), columns.end()));
  return best;
}

TEST(Matching, TheSlowestEdgeIsAsFastAsItCanBe) {
  // Row by row the cheapest would be 1, 2, 9. Column 2 costs 7 at least.
  const std::optional<Matching> matching = Match({1, 5, 9,  //
                                                  1, 2, 7,  //
                                                  3, 4, 9},
                                                 3);

  ASSERT_TRUE(matching.has_value());
  EXPECT_EQ(matching->bottleneck, 7);
  EXPECT_EQ(matching->columns[1], 2);
}

TEST(Matching, WhereTheCheapestEdgesCollideTheNextCostDecides) {
  // Each row's cheapest is column 0, each column has an edge of cost 1 or 2, but no matching is that cheap.
  const std::optional<Matching> matching = Match({1, 3,  //
                                                  1, 4},
                                                 2);

  ASSERT_TRUE(matching.has_value());
  EXPECT_EQ(matching->bottleneck, 3);
  EXPECT_THAT(matching->columns, ElementsAre(1, 0));
}

TEST(Matching, AnEdgeThatIsNotThereIsNotUsed) {
  EXPECT_THAT(Match({kNoEdge, 5, 1, kNoEdge}, 2)->columns, ElementsAre(1, 0));
  EXPECT_FALSE(Match({kNoEdge, kNoEdge, 1, 1}, 2).has_value());
  // Two rows have only one column between them.
  EXPECT_FALSE(Match({1, kNoEdge, kNoEdge, 1, kNoEdge, kNoEdge, 1, 1, 1}, 3).has_value());
}

TEST(Matching, RandomGraphsMatchAsBruteForceDoes) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const std::size_t size = 1 + random() % 6;
    std::vector<double> costs(size * size);
    for (double& cost : costs) cost = random() % 4 == 0 ? kNoEdge : static_cast<double>(random() % 8);
    const double expected = BruteForce(costs, size);

    const std::optional<Matching> matching = Match(costs, size);

    ASSERT_EQ(matching.has_value(), expected != kNoEdge) << "round " << round;
    if (!matching) continue;
    EXPECT_EQ(matching->bottleneck, expected) << "round " << round;
    std::vector<std::size_t> columns = matching->columns;
    for (std::size_t row = 0; row < size; ++row) EXPECT_LE(costs[row * size + columns[row]], expected);
    std::sort(columns.begin(), columns.end());
    EXPECT_EQ(std::unique(columns.begin(), columns.end()), columns.end()) << "a column twice, round " << round;
  }
}

TEST(Matching, OneMatcherServesGraphsOfAnySize) {
  BottleneckMatcher matcher;
  EXPECT_EQ(matcher.Bottleneck(std::vector<double>{4, 1, 1, 4}, 2), 1);
  EXPECT_EQ(matcher.Bottleneck(std::vector<double>{6}, 1), 6);
  EXPECT_EQ(matcher.Bottleneck({}, 0), 0);
  EXPECT_EQ(matcher.Bottleneck(std::vector<double>{4, 5, 5, 9}, 2), 5);
}

}  // namespace
}  // namespace cairn
