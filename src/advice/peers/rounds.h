#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cairn::peers {

/// Two ranks, the lower one first.
using RankPair = std::pair<int, int>;
/// Pairs that may be measured at the same time: no host is in two of them.
using Round = std::vector<RankPair>;

/// Every pair of ranks once, in the rounds of a round-robin tournament of the hosts. `hosts`: of each rank.
///
/// Pairs within a host come first, one at a time on each host. With one rank on each of n hosts there are n - 1 rounds,
/// or n if n is odd.
[[nodiscard]] std::vector<Round> MakeRounds(const std::vector<std::string>& hosts);

}  // namespace cairn::peers
