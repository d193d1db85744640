#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The network between two machines of a run: two network namespaces of this machine, a veth pair between them, and a
/// token bucket (tc's tbf) at each end that holds what is sent to a rate. Nothing else is connected to it.
///
/// The namespaces have no names: they disappear, with everything in them, once no process, socket or descriptor uses
/// them, however the run ends. There is nothing to clean up.
struct TwoNodes {
  /// By node. Interfaces are "node0" and "node1".
  static constexpr std::array<const char*, 2> kAddresses{"10.77.0.1", "10.77.0.2"};

  std::array<UniqueFd, 2> networks;

  /// Unsupported, with the reason, if privileges or tools are missing.
  [[nodiscard]] static Result<TwoNodes> Make(std::uint64_t bytes_per_second);
};

/// Moves the calling thread into the network namespace. Threads, sockets and processes that it makes stay there.
Status EnterNetwork(int network);
/// Runs the body on a thread within the network namespace, and returns what it returns.
Status RunInNetwork(int network, const std::function<Status()>& body);

}  // namespace cairn::bench
