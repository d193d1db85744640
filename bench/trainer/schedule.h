#pragma once

#include <cstdint>
#include <string>

namespace cairn::trainer {

/// The learning rate of each step as a factor: rises linearly during the warm-up, then stays constant or falls to 0.
struct Schedule {
  enum class Decay : std::uint8_t { kConstant, kLinear, kCosine };

  Decay decay = Decay::kConstant;
  /// Steps of warm-up; the last of them has the full rate.
  std::uint64_t warmup = 0;
  /// The number of steps after which the rate is 0. A constant schedule ignores it.
  std::uint64_t steps = 0;

  /// The factor for this step; the first step is 1.
  [[nodiscard]] double Factor(std::uint64_t step) const;
  /// Differs for different schedules.
  [[nodiscard]] std::string ToText() const;
};

/// "constant", "linear" or "cosine".
Schedule::Decay DecayFromName(const std::string& name);

}  // namespace cairn::trainer
