#pragma once

#include <cstddef>
#include <vector>

#include "advice/place/network.h"
#include "cairn/status.h"

namespace cairn {

/// What the loss of one failure domain costs.
struct DomainLoss {
  std::size_t domain = 0;
  std::size_t devices = 0;
  /// Until whatever replaces its devices has their state back, from the devices that keep it.
  double recovery_seconds = 0;
  /// Until every state has a replica again: those of the lost devices, and those that they kept.
  double safe_again_seconds = 0;
};

struct Partners {
  /// The device that keeps each device's replica. Every device keeps one.
  std::vector<std::size_t> keepers;
  /// Until every device has sent its state to its keeper, all at the same time.
  double replication_seconds = 0;
  /// Of each domain, in the order of the network's.
  std::vector<DomainLoss> losses;
};

/// Chooses a keeper for each device, outside its failure domain, so that the slowest of all transfers is as fast as it
/// can be. A lost device is assumed to be replaced at the same place in the network.
///
/// FailedPrecondition if one domain has more than half of the devices: names it.
[[nodiscard]] Result<Partners> ChoosePartners(const Network& network, double state_bytes);

}  // namespace cairn
