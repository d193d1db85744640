#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"

namespace cairn::tools {

enum class State : std::uint8_t { kOk, kCosts, kMissing };

/// One property that matters for saves. Figures in `cost` are measured (docs/results.md).
struct Finding {
  std::string name;
  State state = State::kOk;
  std::string found;
  /// What it costs if it is not ok, or what the figure means.
  std::string cost;
  /// For programs: a number if there is one, or whether it is there.
  nlohmann::json value;
};

[[nodiscard]] inline std::string_view StateName(State state) {
  constexpr std::array<std::string_view, 3> kNames{"ok", "costs", "missing"};
  return kNames.at(static_cast<std::size_t>(state));
}
[[nodiscard]] inline State CostsUnless(bool good) { return good ? State::kOk : State::kCosts; }
[[nodiscard]] inline State MissingUnless(bool there) { return there ? State::kOk : State::kMissing; }

/// Adds what each GPU can do: copies that arrive intact, the rates of its link and of Cairn's lanes, pinning, staging.
/// Takes some seconds for each, less if `probe_time` is below 400 ms. Unsupported or DeviceError, saying why, where no
/// GPU can be used.
[[nodiscard]] Status AddGpus(std::vector<Finding>& findings, std::uint64_t bytes, std::chrono::nanoseconds probe_time);

}  // namespace cairn::tools
