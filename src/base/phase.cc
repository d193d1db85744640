#include <array>

#include "cairn/stats.h"

namespace cairn {

std::string_view SavePhaseName(SavePhase phase) {
  constexpr std::array<std::string_view, 7> kNames = {"queued", "capturing", "captured", "committing",
                                                      "kept",   "durable",   "failed"};
  const auto i = static_cast<std::size_t>(phase);
  return i < kNames.size() ? kNames.at(i) : "?";
}

}  // namespace cairn
