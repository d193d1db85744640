#include "schedule.h"

#include <cmath>
#include <numbers>

namespace cairn::trainer {

double Schedule::Factor(std::uint64_t step) const {
  if (step <= warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  if (decay == Decay::kConstant) return 1;
  if (step > steps) return 0;
  const double done = static_cast<double>(step - 1 - warmup) / static_cast<double>(steps - warmup);
  return decay == Decay::kLinear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
}

std::string Schedule::ToText() const {
  std::string text = decay == Decay::kConstant ? "constant" : decay == Decay::kLinear ? "linear" : "cosine";
  if (decay != Decay::kConstant) text += " steps=" + std::to_string(steps);
  if (warmup > 0) text += " warmup=" + std::to_string(warmup);
  return text;
}

Schedule::Decay DecayFromName(const std::string& name) {
  if (name == "linear") return Schedule::Decay::kLinear;
  if (name == "cosine") return Schedule::Decay::kCosine;
  return Schedule::Decay::kConstant;
}

}  // namespace cairn::trainer
