#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The network between the machine that trains and the one that keeps its checkpoints: two network namespaces of this
/// machine, a veth pair between them, and a token bucket (tc's tbf) at each end that holds what is sent to a rate.
///
/// The namespaces have no names: they end, with all that is in them, once no process, socket or descriptor is left in
/// them, however the run ends. There is nothing to sweep.
struct PeerNetwork {
  static constexpr const char* kTrainingAddress = "10.77.0.1";
  static constexpr const char* kPeerAddress = "10.77.0.2";

  UniqueFd training;
  UniqueFd peer;

  /// Unsupported, with the reason, where that takes privileges or tools that are not there.
  [[nodiscard]] static Result<PeerNetwork> Make(std::uint64_t bytes_per_second);
};

/// Runs the body on a thread within the network namespace, and returns what it returns. Threads, sockets and processes
/// that it makes stay there.
Status RunInNetwork(int network, const std::function<Status()>& body);

}  // namespace cairn::bench
