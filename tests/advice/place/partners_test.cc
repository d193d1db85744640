#include "advice/place/partners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "advice/place/networks.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(Partners, EachKeepsOneReplicaOfAnotherDomain) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const Network network = RandomNetwork(12, 3, seed);

    const Result<Partners> partners = ChoosePartners(network, 100);

    ASSERT_TRUE(partners.ok()) << partners.status();
    double slowest = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      const std::size_t keeper = partners->keepers[i];
      EXPECT_NE(network.domain(i), network.domain(keeper));
      slowest = std::max(slowest, network.Seconds(i, keeper, 100));
    }
    EXPECT_EQ(partners->replication_seconds, slowest);
    std::vector<std::size_t> keepers = partners->keepers;
    std::sort(keepers.begin(), keepers.end());
    for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(keepers[i], i);
  }
}

TEST(Partners, TheFastLinksAreUsed) {
  // Four racks of two; only the racks 0 and 2, and 1 and 3, are joined by fast links.
  Network network = AlikeNetwork(8, 2, {.bytes_per_second = 1});
  for (const std::size_t rack : {0, 1}) {
    for (const std::size_t a : {0, 1}) {
      for (const std::size_t b : {0, 1}) {
        network.SetLink(2 * rack + a, 2 * (rack + 2) + b, {.bytes_per_second = 50});
      }
    }
  }
  network.SetLink(0, 1, {.bytes_per_second = 1000});  // Faster still, but of one rack.

  const Result<Partners> partners = ChoosePartners(network, 100);

  ASSERT_TRUE(partners.ok());
  EXPECT_DOUBLE_EQ(partners->replication_seconds, 2);
  EXPECT_EQ(network.domain(partners->keepers[0]), 2);
  EXPECT_EQ(network.domain(partners->keepers[7]), 1);
}

TEST(Partners, ALossCostsItsOwnStateAndTheReplicasThatItKept) {
  // Each in a rack of its own. d0 and d1 keep each other's replica, d2 and d3 too, over a slower link.
  Network network = AlikeNetwork(4, 1, {.bytes_per_second = 1});
  network.SetLink(0, 1, {.bytes_per_second = 10});
  network.SetLink(2, 3, {.bytes_per_second = 5});

  const Result<Partners> partners = ChoosePartners(network, 10);

  ASSERT_TRUE(partners.ok());
  EXPECT_THAT(partners->keepers, ::testing::ElementsAre(1, 0, 3, 2));
  ASSERT_EQ(partners->losses.size(), 4);
  EXPECT_DOUBLE_EQ(partners->losses[0].recovery_seconds, 1);
  EXPECT_DOUBLE_EQ(partners->losses[3].recovery_seconds, 2);
  EXPECT_DOUBLE_EQ(partners->losses[3].safe_again_seconds, 2);
  EXPECT_DOUBLE_EQ(partners->replication_seconds, 2);
}

TEST(Partners, ALossOfAKeeperWithASlowerWardTakesLongerToBeSafe) {
  // The only matching of three racks is a ring, in one of two directions: d0 to d1 to d2 to d0.
  Network network = AlikeNetwork(3, 1, {.bytes_per_second = 1});
  network.SetLink(0, 1, {.bytes_per_second = 10});
  network.SetLink(1, 2, {.bytes_per_second = 5});
  network.SetLink(2, 0, {.bytes_per_second = 2});

  const Result<Partners> partners = ChoosePartners(network, 10);

  ASSERT_TRUE(partners.ok());
  double slowest = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const DomainLoss& loss = partners->losses[i];
    std::size_t ward = 0;
    while (partners->keepers[ward] != i) ++ward;
    const double own = network.Seconds(i, partners->keepers[i], 10);
    EXPECT_DOUBLE_EQ(loss.recovery_seconds, own);
    EXPECT_DOUBLE_EQ(loss.safe_again_seconds, std::max(own, network.Seconds(ward, i, 10)));
    slowest = std::max(slowest, loss.safe_again_seconds);
  }
  EXPECT_DOUBLE_EQ(slowest, 5);
}

TEST(Partners, ADomainOfMoreThanHalfIsNamed) {
  EXPECT_TRUE(ChoosePartners(AlikeNetwork(6, 3, {.bytes_per_second = 1}), 1).ok());

  const Result<Partners> partners = ChoosePartners(AlikeNetwork(6, 4, {.bytes_per_second = 1}), 1);

  EXPECT_EQ(partners.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(partners.status().message(), HasSubstr("at most half of the 6 devices in rack0, found 4"));
}

}  // namespace
}  // namespace cairn
