#include "tools/peers/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

#include "base/human.h"
#include "tools/output.h"
#include "tools/quantities.h"

namespace cairn::tools {
namespace {

using nlohmann::json;

constexpr std::size_t kMostRows = 28;  // All pairs of 8 ranks.

double Slower(const PairMeasured& link) { return std::min(link.there, link.back); }

}  // namespace

std::vector<std::string> DeviceNames(const std::vector<PeersMeasured::Rank>& ranks) {
  std::map<std::string, int> on_host;
  for (const PeersMeasured::Rank& rank : ranks) ++on_host[rank.host];
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string& host = ranks[i].host;
    names.push_back(on_host[host] == 1 ? host : fmt::format("{}/{}", host, i));
  }
  return names;
}

json ToTopology(const PeersMeasured& measured) {
  const std::vector<std::string> names = DeviceNames(measured.ranks);
  json devices = json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    devices.push_back({{"name", names[i]}, {"domain", measured.ranks[i].domain}});
  }
  const std::vector<std::vector<double>> none(names.size(), std::vector<double>(names.size()));
  std::vector<std::vector<double>> delays = none;
  std::vector<std::vector<double>> rates = none;
  for (const auto& [ranks, link] : measured.pairs) {
    const auto first = static_cast<std::size_t>(ranks.first);
    const auto second = static_cast<std::size_t>(ranks.second);
    delays[first][second] = delays[second][first] = 1e3 * link.delay_seconds;
    rates[first][second] = rates[second][first] = Slower(link);
  }
  return {{"devices", devices}, {"delay_ms", delays}, {"bytes_per_second", rates}};
}

json ToJson(const PeersMeasured& measured) {
  const std::vector<std::string> names = DeviceNames(measured.ranks);
  json ranks = json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    ranks.push_back(
        {{"rank", i}, {"name", names[i]}, {"host", measured.ranks[i].host}, {"domain", measured.ranks[i].domain}});
  }
  json pairs = json::array();
  for (const auto& [pair, link] : measured.pairs) {
    pairs.push_back({{"from", pair.first},
                     {"to", pair.second},
                     {"delay_seconds", link.delay_seconds},
                     {"bytes_per_second", link.there},
                     {"bytes_per_second_back", link.back}});
  }
  return {{"ranks", ranks}, {"rounds", measured.rounds}, {"pairs", pairs}};
}

void Print(const PeersMeasured& measured) {
  const std::vector<std::string> names = DeviceNames(measured.ranks);
  std::vector<PeersMeasured::Pair> pairs = measured.pairs;
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return Slower(a.link) < Slower(b.link); });
  const std::size_t shown = std::min(pairs.size(), kMostRows);
  std::vector<std::vector<std::string>> rows{{"RANK", "AND RANK", "DELAY", "THERE", "BACK"}};
  const auto name = [&](int rank) {
    return fmt::format("{} {}", rank, Printable(names[static_cast<std::size_t>(rank)]));
  };
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [ranks, link] = pairs[i];
    rows.push_back({name(ranks.first), name(ranks.second), HumanSeconds(link.delay_seconds), HumanRate(link.there),
                    HumanRate(link.back)});
  }
  PrintTable(rows);
  if (shown < pairs.size()) fmt::print("and {} faster pairs\n", pairs.size() - shown);
}

}  // namespace cairn::tools
