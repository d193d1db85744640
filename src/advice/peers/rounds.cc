#include "advice/peers/rounds.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace cairn::peers {
namespace {

using Ranks = std::vector<int>;

/// In order of their first ranks.
std::vector<Ranks> RanksOfHosts(const std::vector<std::string>& hosts) {
  std::vector<Ranks> found;
  std::map<std::string, std::size_t> by_name;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [at, fresh] = by_name.emplace(hosts[rank], found.size());
    if (fresh) found.emplace_back();
    found[at->second].push_back(static_cast<int>(rank));
  }
  return found;
}

/// Lists of pairs that each must be measured one after the other, side by side: a round has one of each.
void AddRounds(const std::vector<Round>& lists, std::vector<Round>& rounds) {
  for (std::size_t i = 0;; ++i) {
    Round round;
    for (const Round& list : lists) {
      if (i < list.size()) round.push_back(list[i]);
    }
    if (round.empty()) return;
    rounds.push_back(std::move(round));
  }
}

Round PairsWithin(const Ranks& ranks) {
  Round pairs;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) pairs.emplace_back(ranks[i], ranks[j]);
  }
  return pairs;
}

Round PairsBetween(const Ranks& some, const Ranks& others) {
  Round pairs;
  for (const int one : some) {
    for (const int other : others) pairs.emplace_back(std::minmax(one, other));
  }
  return pairs;
}

}  // namespace

std::vector<Round> MakeRounds(const std::vector<std::string>& hosts) {
  const std::vector<Ranks> nodes = RanksOfHosts(hosts);
  std::vector<Round> rounds;
  std::vector<Round> within;
  for (const Ranks& ranks : nodes) within.push_back(PairsWithin(ranks));
  AddRounds(within, rounds);

  // The circle method: the last seat stays, the others turn. Of an odd number one has no partner in each round.
  const std::size_t seats = nodes.size() + nodes.size() % 2;
  for (std::size_t turn = 0; turn + 1 < seats; ++turn) {
    const auto at = [&](std::size_t seat) { return seat + 1 == seats ? seat : (seat + turn) % (seats - 1); };
    std::vector<Round> between;
    for (std::size_t seat = 0; seat < seats / 2; ++seat) {
      const std::size_t one = at(seat);
      const std::size_t other = at(seats - 1 - seat);
      if (std::max(one, other) < nodes.size()) between.push_back(PairsBetween(nodes[one], nodes[other]));
    }
    AddRounds(between, rounds);
  }
  return rounds;
}

}  // namespace cairn::peers
