#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "advice/place/network.h"

namespace cairn {

/// Devices d0, d1, ..., `together` in each failure domain, all links alike.
inline Network AlikeNetwork(std::size_t devices, std::size_t together, Network::Link link) {
  std::vector<std::string> names;
  std::vector<std::size_t> domains;
  std::vector<std::string> domain_names;
  for (std::size_t i = 0; i < devices; ++i) {
    names.push_back("d" + std::to_string(i));
    domains.push_back(i / together);
    if (i % together == 0) domain_names.push_back("rack" + std::to_string(i / together));
  }
  Network network(std::move(names), std::move(domains), std::move(domain_names));
  for (std::size_t i = 0; i < devices; ++i) {
    for (std::size_t j = 0; j < i; ++j) network.SetLink(i, j, link);
  }
  return network;
}

/// The same with links of 1 to 100 bytes a second, and delays of up to a second.
inline Network RandomNetwork(std::size_t devices, std::size_t together, std::uint32_t seed) {
  Network network = AlikeNetwork(devices, together, {.bytes_per_second = 1});
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < devices; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      network.SetLink(i, j,
                      {.delay_seconds = static_cast<double>(random() % 1000) / 1000,
                       .bytes_per_second = 1 + static_cast<double>(random() % 100)});
    }
  }
  return network;
}

}  // namespace cairn
