#include "advice/peers/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>

namespace cairn::peers {

using nlohmann::json;

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
    rates[first][second] = rates[second][first] = std::min(link.there, link.back);
  }
  return {{"devices", devices}, {"delay_ms", delays}, {"bytes_per_second", rates}};
}

}  // namespace cairn::peers
