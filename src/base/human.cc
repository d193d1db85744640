#include "base/human.h"

#include <fmt/format.h>

namespace cairn {

std::string HumanSeconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 600) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.3g} min", seconds / 60);
  return fmt::format("{:.4g} h", seconds / 3600);
}

}  // namespace cairn
