#include "advice/place/partners.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "advice/place/matching.h"
#include "base/status_macros.h"

namespace cairn {

Result<Partners> ChoosePartners(const Network& network, double state_bytes) {
  const std::size_t devices = network.devices();
  std::vector<double> costs(devices * devices, kNoEdge);
  std::vector<DomainLoss> losses(network.domain_names().size());
  for (std::size_t i = 0; i < devices; ++i) {
    ++losses[network.domain(i)].devices;
    for (std::size_t j = 0; j < devices; ++j) {
      if (network.domain(i) != network.domain(j)) costs[i * devices + j] = network.Seconds(i, j, state_bytes);
    }
  }
  std::optional<Matching> matching = BottleneckMatcher().Match(costs, devices);
  if (!matching) {
    const auto most = std::ranges::max_element(
        losses, [](const DomainLoss& a, const DomainLoss& b) { return a.devices < b.devices; });
    return Error(StatusCode::kFailedPrecondition,
                 "replicas outside the failure domain: expected at most half of the {} devices in {}, found {}",
                 devices, network.domain_names()[static_cast<std::size_t>(most - losses.begin())], most->devices);
  }
  for (std::size_t i = 0; i < devices; ++i) {
    const std::size_t keeper = matching->columns[i];
    const double seconds = costs[i * devices + keeper];
    DomainLoss& lost = losses[network.domain(i)];
    lost.recovery_seconds = std::max(lost.recovery_seconds, seconds);
    lost.safe_again_seconds = std::max(lost.safe_again_seconds, seconds);
    double& kept = losses[network.domain(keeper)].safe_again_seconds;
    kept = std::max(kept, seconds);
  }
  for (std::size_t domain = 0; domain < losses.size(); ++domain) losses[domain].domain = domain;
  return Partners{.keepers = std::move(matching->columns),
                  .replication_seconds = matching->bottleneck,
                  .losses = std::move(losses)};
}

}  // namespace cairn
