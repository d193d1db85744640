#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "advice/place/network.h"
#include "advice/place/placement.h"
#include "cairn/status.h"

namespace cairn {

inline constexpr std::size_t kMostDevices = 512;

/// What a topology file says. docs/planning.md describes the format.
struct Topology {
  Network network;
  /// Empty if the file has no `stages`.
  std::optional<PlacementJob> job;
  /// Where the ranks are now, if the file says so: the devices of each stage.
  std::optional<Groups> current;
  /// Of one device's checkpoint. Empty if the file has none.
  std::optional<double> state_bytes;
};

/// Reads a topology from JSON. `where` begins the messages: the file's name. `given` are members of the outermost
/// object, such as `state_bytes`, that precede the file's.
///
/// InvalidArgument if the text is not JSON or not such an object, or if the network has a hole, is asymmetric or has a
/// number out of range: names the place, the expected and the found value.
[[nodiscard]] Result<Topology> ParseTopology(std::string_view text, const std::string& where,
                                             const std::map<std::string, std::uint64_t>& given = {});

}  // namespace cairn
