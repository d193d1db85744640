#include "advice/peers/rounds.h"

#include <gtest/gtest.h>

#include <set>

namespace cairn::peers {
namespace {

/// `ranks` on each of `hosts`, the hosts in turn.
std::vector<std::string> Spread(int hosts, int ranks) {
  std::vector<std::string> found;
  for (int i = 0; i < hosts * ranks; ++i) found.push_back("host" + std::to_string(i % hosts));
  return found;
}

void ExpectTournament(const std::vector<std::string>& hosts, const std::vector<Round>& rounds) {
  std::set<RankPair> met;
  for (const Round& round : rounds) {
    std::set<std::string> busy;
    for (const auto& [first, second] : round) {
      EXPECT_LT(first, second);
      EXPECT_TRUE(met.insert({first, second}).second) << first << " and " << second << " meet twice";
      const std::string& one = hosts[static_cast<std::size_t>(first)];
      const std::string& other = hosts[static_cast<std::size_t>(second)];
      EXPECT_TRUE(busy.insert(one).second) << one << " is in two pairs of a round";
      const bool free = other == one || busy.insert(other).second;
      EXPECT_TRUE(free) << other << " is in two pairs of a round";
    }
  }
  EXPECT_EQ(met.size(), hosts.size() * (hosts.size() - 1) / 2);
}

TEST(PeerRounds, EveryPairMeetsOnceAndNoHostIsInTwoPairsOfARound) {
  for (int hosts = 1; hosts <= 9; ++hosts) {
    for (int ranks = 1; ranks <= 3; ++ranks) {
      if (hosts * ranks < 2) continue;
      SCOPED_TRACE(std::to_string(ranks) + " ranks on each of " + std::to_string(hosts) + " hosts");
      ExpectTournament(Spread(hosts, ranks), MakeRounds(Spread(hosts, ranks)));
    }
  }
}

TEST(PeerRounds, HostsOfDifferentNumbersOfRanks) {
  const std::vector<std::string> hosts{"a", "b", "a", "c", "a", "c", "d", "e"};

  ExpectTournament(hosts, MakeRounds(hosts));
}

TEST(PeerRounds, AreAsFewAsPossibleWithOneRankOnEachHost) {
  EXPECT_EQ(MakeRounds(Spread(2, 1)).size(), 1U);
  EXPECT_EQ(MakeRounds(Spread(8, 1)).size(), 7U);
  EXPECT_EQ(MakeRounds(Spread(9, 1)).size(), 9U);
  EXPECT_EQ(MakeRounds(Spread(512, 1)).size(), 511U);
}

}  // namespace
}  // namespace cairn::peers
