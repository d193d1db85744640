#pragma once

#include <cstdint>
#include <string>

namespace cairn::trainer {

/// The learning rate of each step, of the highest: rises linearly over the warm-up, then stays or falls to nothing.
struct Schedule {
  enum class Decay : std::uint8_t { kConstant, kLinear, kCosine };

  Decay decay = Decay::kConstant;
  std::uint64_t warmup = 0;  ///< Steps; the last of them has the full rate.
  std::uint64_t steps = 0;   ///< After so many it would be nothing; no step of a constant schedule needs it.

  /// Of the step with this number, the first being 1.
  [[nodiscard]] double Factor(std::uint64_t step) const;
  /// What tells two schedules apart.
  [[nodiscard]] std::string ToText() const;
};

/// "constant", "linear" or "cosine".
Schedule::Decay DecayFromName(const std::string& name);

}  // namespace cairn::trainer
