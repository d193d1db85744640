#include "advice/place/network.h"

#include <utility>

namespace cairn {

Network::Network(std::vector<std::string> names, std::vector<std::size_t> domains,
                 std::vector<std::string> domain_names)
    : names_(std::move(names)),
      domains_(std::move(domains)),
      domain_names_(std::move(domain_names)),
      costs_(names_.size() * names_.size()) {}

void Network::SetLink(std::size_t from, std::size_t to, Link link) {
  const Cost cost{.delay = link.delay_seconds, .seconds_per_byte = 1 / link.bytes_per_second};
  costs_[from * names_.size() + to] = cost;
  costs_[to * names_.size() + from] = cost;
}

}  // namespace cairn
