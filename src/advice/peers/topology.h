#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "advice/peers/coordinator.h"

namespace cairn::peers {

/// Names of the ranks as devices: the host, and behind it "/RANK" where several are on one.
[[nodiscard]] std::vector<std::string> DeviceNames(const std::vector<PeersMeasured::Rank>& ranks);

/// What `cairn place` reads (advice/place/topology.h), without a job. Its links are the same in both directions: of the
/// two measured rates it has the lower one.
[[nodiscard]] nlohmann::json ToTopology(const PeersMeasured& measured);

}  // namespace cairn::peers
