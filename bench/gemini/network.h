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
/// The namespaces have no names: they disappear, with everything in them, once no process, socket or descriptor uses
/// them, however the run ends. There is nothing to clean up.
struct PeerNetwork {
  static constexpr const char* kTrainingAddress = "10.77.0.1";
  static constexpr const char* kPeerAddress = "10.77.0.2";

  UniqueFd training;
  UniqueFd peer;

  /// Unsupported, with the reason, if privileges or tools are missing.
  [[nodiscard]] static Result<PeerNetwork> Make(std::uint64_t bytes_per_second);
};

/// Runs the body on a thread within the network namespace, and returns what it returns. Threads, sockets and processes
/// that it makes stay there.
Status RunInNetwork(int network, const std::function<Status()>& body);

}  // namespace cairn::bench
